"""The paper's methods by name, and how each is requested. A new method is one more line of the table.

A method of the server is a forgetting policy of the federation. PUF is the default policy; its requests name a mode.
The lab opens a copy of the trained federation under that policy, and the targets file their requests. Original and
Retrain are trained, not forgotten. They are trained once and shared by all methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from puf_common.errors import UsageError
from puf_server import plugins
from puf_server.core.config import FederationConfig
from puf_server.core.methods import named
from puf_server.core.methods.base import Method as ServerMethod
from puf_server.core.methods.federaser import FedEraserOptions
from puf_server.core.methods.fedosd import FedOsdOptions
from puf_server.core.methods.fukd import FukdOptions
from puf_server.core.methods.mode import ModeOptions, phases
from puf_server.core.methods.rapid_retraining import RapidOptions
from puf_server.core.methods.sifu import SifuOptions

Kind = Literal["original", "retrain", "natural", "forget"]

# The user starts the experiment with code of this machine, so every process of the lab may load that code.
plugins.allow()


@dataclass(frozen=True)
class Method:
    """`label` is the method's name in the paper's tables."""

    label: str
    kind: Kind = "forget"
    mode: str | None = None
    policy: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_puf(self) -> bool:
        return self.kind == "forget" and not self.policy


METHODS: dict[str, Method] = {
    "original": Method("Original", "original"),
    "retrain": Method("Retrain", "retrain"),
    # Retrain with another training seed. Its distance to Retrain is the noise floor.
    "floor": Method("Retrain′ (floor)", "retrain"),
    "natural": Method("Natural", "natural"),
    "puf-special": Method("PUF-Special", mode="special"),
    "puf-regular": Method("PUF-Regular", mode="regular"),
    "puf-auto": Method("PUF-auto", mode="regular", policy={"strength": "auto"}),
    "not": Method("NoT", policy={"method": "not"}),
    "federaser": Method("FedEraser", policy={"method": "federaser"}),
    "pga": Method("PGA", policy={"method": "pga"}),
    "mode": Method("MoDe", policy={"method": "mode"}),
    "fedau": Method("FedAU", policy={"method": "fedau"}),
    "fukd": Method("FUKD", policy={"method": "fukd"}),
    "rapid": Method("Rapid", policy={"method": "rapid"}),
    "fedquit": Method("FedQUIT", policy={"method": "fedquit"}),
    "negmerge": Method("NegMerge", policy={"method": "negmerge"}),
    "fedosd": Method("FedOSD", policy={"method": "fedosd"}),
    "sifu": Method("SIFU", policy={"method": "sifu"}),
}
# PUF's strength is part of the request. Options of other methods are part of the policy.
_STRENGTH = ("kappa", "eta_u", "epochs")
_PUF_POLICY = ("rest",)
# E_u where a setting and a variant do not state it. The paper's Algorithm 1 would have E, its tuning section has 1.
_UNLEARNING_EPOCHS = "1"


@dataclass(frozen=True)
class Variant:
    """A method with its options, written as "puf-special eta_u=2 epochs=2"."""

    name: str
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str, defaults: Mapping[str, Mapping[str, object]]) -> Variant:
        """The variant of this text. Missing options come from the defaults; kappa and eta_u replace each other."""
        name, *words = text.split()
        if name not in METHODS and ":" not in name:
            raise UsageError(
                f"there is no method {name!r}; use one of {', '.join(METHODS)}, or package.module:name of your own code"
            )
        options: dict[str, str] = {}
        for word in words:
            key, equals, value = word.partition("=")
            if not equals or not key or not value:
                raise UsageError(f"method {text!r}: options are written as key=value")
            options[key] = value
        if {"kappa", "eta_u"} <= options.keys():
            raise UsageError(f"method {text!r}: kappa and eta_u both state the strength; give one of them")
        base = {key: _text(value) for key, value in defaults.get(name, {}).items()}
        if name in METHODS and METHODS[name].is_puf:
            # E_u is part of every variant of PUF, so that all outputs show it.
            base.setdefault("epochs", _UNLEARNING_EPOCHS)
        if {"kappa", "eta_u"} & options.keys():
            base = {key: value for key, value in base.items() if key not in ("kappa", "eta_u")}
        return cls(name, tuple(sorted({**base, **options}.items())))

    @property
    def method(self) -> Method:
        return METHODS.get(self.name) or Method(self.name.rpartition(":")[2], policy={"method": self.name})

    @property
    def history(self) -> str:
        """The server's name of a method that needs stored history of earlier rounds, else empty."""
        name = str(self.method.policy.get("method", ""))
        try:
            return name if name and named(name).stores.words else ""
        except ValueError as error:
            raise UsageError(str(error)) from None

    @property
    def is_puf(self) -> bool:
        return self.method.is_puf

    @property
    def recovers(self) -> bool:
        """Whether recovery after this method is its own: the routines, rule or rate of its rounds, or their number."""
        method = self._server_method
        own_step = type(method).recovery_step is not ServerMethod.recovery_step
        own_number = type(method).recovery_rounds is not ServerMethod.recovery_rounds
        return own_step or own_number or method.rate(FederationConfig(id="", model="")) is not None

    @property
    def routines(self) -> tuple[str, ...]:
        """Routines of the user's code that the method has clients run."""
        return self._server_method.routines

    @property
    def needs_plain_averages(self) -> bool:
        return self._server_method.plain_averages

    @property
    def _server_method(self) -> ServerMethod:
        try:
            return named(str(self.method.policy.get("method", "puf")), self.policy().get("method_options"))
        except ValueError as error:
            raise UsageError(f"{self.text!r}: {error}") from None

    def own_rounds(self, trained: int, doses: int) -> int:
        """Upper bound of the method's rounds before recovery, in a federation with so many rounds.

        `doses` is the largest number of doses of adaptive strength.
        """
        options = self._server_method.options
        match options:
            case FedEraserOptions():
                return -(-trained // options.delta_t)
            case ModeOptions():
                return len(phases(options))
            case RapidOptions():
                return options.rounds or trained
            case FukdOptions():
                return 2
            case FedOsdOptions():
                return options.rounds
            case SifuOptions():
                # The noise, and as many rounds as were lost.
                return 1 + (options.rounds or trained)
            case _:
                return doses if self.method.policy.get("strength") == "auto" else 1

    @property
    def text(self) -> str:
        return " ".join([self.name, *(f"{key}={value}" for key, value in self.options)])

    def label(self, defaults: Mapping[str, Mapping[str, object]]) -> str:
        """The name in tables: the label, and the options that differ from the setting's defaults."""
        usual = dict(Variant.parse(self.name, defaults).options)
        differing = [f"{key}={value}" for key, value in self.options if usual.get(key) != value]
        return " ".join([self.method.label, *differing])

    def policy(self) -> dict[str, Any]:
        """Changes to the federation's forgetting policy."""
        policy = dict(self.method.policy)
        options = {key: value for key, value in self.options if not self.is_puf or key in _PUF_POLICY}
        return {**policy, "method_options": options} if options else policy

    def strength(self) -> dict[str, Any]:
        """Strength of the request. Unknown options are refused, because the server would not read them."""
        if not self.is_puf:
            return {}
        unknown = [key for key, _ in self.options if key not in (*_STRENGTH, *_PUF_POLICY)]
        if unknown:
            takes = ", ".join((*_STRENGTH, *_PUF_POLICY))
            raise UsageError(f"{self.name} has no option {unknown[0]!r}; it takes {takes}")
        stated = [(key, value) for key, value in self.options if key in _STRENGTH]
        try:
            return {key: int(float(value)) if key == "epochs" else float(value) for key, value in stated}
        except ValueError:
            raise UsageError(f"{self.text!r}: options of PUF are numbers") from None


def limits(name: str, option: str) -> tuple[float | None, float | None]:
    """The smallest and the largest value that the option of a method admits. None: no such limit is stated."""
    if name in METHODS and METHODS[name].is_puf:
        return (1.0 if option == "epochs" else None), None
    fields = type(Variant(name)._server_method.options).model_fields
    bounds = fields[option].metadata if option in fields else []
    least, most = ([getattr(each, side) for each in bounds if hasattr(each, side)] for side in ("ge", "le"))
    return next(iter(least), None), next(iter(most), None)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
