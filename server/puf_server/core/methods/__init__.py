"""Methods of unlearning, one file each, and the registry that knows them by name.

puf        negated pseudo-gradients (the default)
natural    training goes on without the target
retrain    from w_0, without the target
not        negation of the first layer, then recovery
federaser  calibrated replay of the rounds that were
pga        the target's projected gradient ascent
mode       momentum degradation and memory guidance
fedau      auxiliary heads of the targets
fukd       subtraction of what the target contributed, then distillation
rapid      rollback, then retraining by curvature
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from pydantic import ValidationError

from puf_common.config.messages import explain_all
from puf_server.core.config import Forgetting
from puf_server.core.methods.base import Memory, Method
from puf_server.core.methods.fedau import FedAU
from puf_server.core.methods.federaser import FedEraser
from puf_server.core.methods.fukd import Fukd
from puf_server.core.methods.mode import Mode
from puf_server.core.methods.natural import Natural
from puf_server.core.methods.pga import Pga
from puf_server.core.methods.puf import Puf
from puf_server.core.methods.rapid_retraining import Rapid
from puf_server.core.methods.retrain import Retrain
from puf_server.core.methods.weight_negation import NoT
from puf_server.core.state.rounds import Round
from puf_server.core.state.tickets import Ticket

__all__ = [
    "by_name",
    "check",
    "fallback_of",
    "known",
    "method_of",
    "named",
    "serving",
    "serving_round",
    "stored_history",
    "use_loader",
]

_load: Callable[[str], type[Method]] | None = None
_own: dict[str, type[Method]] = {}
_made: dict[tuple[str, tuple[tuple[str, str], ...]], Method] = {}
_METHODS: dict[str, type[Method]] = {
    m.name: m for m in (Puf, Natural, Retrain, NoT, FedEraser, Pga, Mode, FedAU, Fukd, Rapid)
}


def known() -> Mapping[str, type[Method]]:
    return _METHODS


def use_loader(load: Callable[[str], type[Method]]) -> None:
    """Names of the form package.module:Class are looked up by this; the shell's, as the core imports no foreign code."""
    global _load
    _load = load


def _kind(name: str) -> type[Method]:
    if name in _METHODS:
        return _METHODS[name]
    if ":" in name and _load is not None:
        if name not in _own:
            _own[name] = _load(name)
        return _own[name]
    raise ValueError(f"there is no method {name!r}; known are {', '.join(_METHODS)}, or package.module:Class")


def named(name: str, options: Mapping[str, str] | None = None) -> Method:
    """The method with these options; ValueError says what is wrong with them. Methods are values: one for all who ask."""
    key = (name, tuple(sorted((options or {}).items())))
    if key not in _made:
        _made[key] = _make(name, options or {})
    return _made[key]


def _make(name: str, options: Mapping[str, str]) -> Method:
    kind = _kind(name)
    try:
        return kind(kind.options_type.model_validate(options))
    except ValidationError as error:
        allowed = ", ".join(kind.options_type.model_fields) or "none"
        raise ValueError(f"method option {explain_all(error)}; options of {name}: {allowed}") from None


def method_of(policy: Forgetting) -> Method:
    return named(policy.method, policy.method_options)


def fallback_of(policy: Forgetting) -> Method | None:
    return named(policy.fallback) if policy.fallback else None


def serving(policy: Forgetting, ticket: Ticket) -> Method:
    """The method for this ticket: the federation's, or its fallback."""
    fallback = fallback_of(policy)
    return fallback if ticket.fallback and fallback is not None else method_of(policy)


def serving_round(policy: Forgetting, current: Round) -> Method:
    """The method whose step this round is."""
    assert current.method is not None
    return by_name(policy, current.method)


def by_name(policy: Forgetting, name: str) -> Method:
    """A method as this federation runs it: with its options where it is the chosen one."""
    return named(name, policy.method_options if name == policy.method else None)


def stored_history(policy: Forgetting) -> Iterator[Memory]:
    """What is kept, of the chosen method, of the fallback and of those the operator wants to be able to change to."""
    for name in dict.fromkeys((policy.method, policy.fallback, *policy.also_remember)):
        if name:
            yield _kind(name).memory


def check(policy: Forgetting) -> None:
    """Names and options as the operator gave them; ValueError says what is wrong."""
    method_of(policy)
    for name in policy.also_remember:
        named(name)
    fallback = fallback_of(policy)
    if fallback is not None and fallback.requires.target_takes_part:
        raise ValueError(f"fallback {fallback.name} needs the target, which is gone then; use retrain or not")
