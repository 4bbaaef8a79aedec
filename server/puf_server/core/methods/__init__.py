"""Methods of unlearning, one file each, and the registry of their names.

puf        negated pseudo-gradients (the default)
puf-auto   puf with adaptive strength: serves requests of a `puf` federation that name no strength
natural    training continues without the target
retrain    from w_0, without the target
not        negation of the first layer, then recovery
federaser  calibrated replay of past rounds
pga        the target's projected gradient ascent
mode       momentum degradation and memory guidance
fedau      auxiliary heads of the targets
fukd       subtraction of the target's updates, then distillation
rapid      rollback, then retraining with curvature
fedquit    the target distils from the model without the true class
negmerge   negation of what several trainings of the target agree on
fedosd     steps at a right angle to the retained updates
sifu       back to a model near one without the target, plus noise
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from pydantic import ValidationError

from puf_common.config.messages import explain_all
from puf_server.core.config import Forgetting
from puf_server.core.methods.base import Method, StoredHistory
from puf_server.core.methods.fedau import FedAU
from puf_server.core.methods.federaser import FedEraser
from puf_server.core.methods.fedosd import FedOsd
from puf_server.core.methods.fedquit import FedQuit
from puf_server.core.methods.fukd import Fukd
from puf_server.core.methods.mode import MoDe
from puf_server.core.methods.natural import Natural
from puf_server.core.methods.negmerge import NegMerge
from puf_server.core.methods.pga import Pga
from puf_server.core.methods.puf import Puf
from puf_server.core.methods.puf_auto import PufAuto
from puf_server.core.methods.rapid_retraining import Rapid
from puf_server.core.methods.retrain import Retrain
from puf_server.core.methods.sifu import Sifu
from puf_server.core.methods.weight_negation import NoT
from puf_server.core.state.rounds import Round
from puf_server.core.state.tickets import Ticket

_load: Callable[[str], type[Method]] | None = None
_own: dict[str, type[Method]] = {}
_made: dict[tuple[str, tuple[tuple[str, str], ...]], Method] = {}
_METHODS: dict[str, type[Method]] = {
    m.name: m
    for m in (
        Puf,
        PufAuto,
        Natural,
        Retrain,
        NoT,
        FedEraser,
        Pga,
        MoDe,
        FedAU,
        Fukd,
        Rapid,
        FedQuit,
        NegMerge,
        FedOsd,
        Sifu,
    )
}


def known() -> Mapping[str, type[Method]]:
    return _METHODS


def use_loader(load: Callable[[str], type[Method]]) -> None:
    """Sets the function that finds a method named package.module:Class. The core itself imports no user's code."""
    global _load
    _load = load


def _kind(name: str) -> type[Method]:
    if name in _METHODS:
        return _METHODS[name]
    if ":" in name and _load is not None:
        if name not in _own:
            _own[name] = _load(name)
        return _own[name]
    raise ValueError(f"there is no method {name!r}; choose one of {', '.join(_METHODS)}, or package.module:Class")


def named(name: str, options: Mapping[str, str] | None = None) -> Method:
    """The method with these options, one object for equal arguments. Raises ValueError for wrong options."""
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
    """The method for this ticket."""
    return by_name(policy, name_serving(policy, ticket))


def name_serving(policy: Forgetting, ticket: Ticket) -> str:
    """The name of the method for this ticket: the federation's, its adaptive form, the fallback, or what followed."""
    if ticket.escalated:
        return ticket.escalated
    if ticket.fallback and policy.fallback:
        return policy.fallback
    return PufAuto.name if policy.method == Puf.name and ticket.adaptive else policy.method


def serving_round(policy: Forgetting, current: Round) -> Method:
    """The method that planned this round."""
    assert current.method is not None
    return by_name(policy, current.method)


def by_name(policy: Forgetting, name: str) -> Method:
    """A method as this federation runs it: with the federation's options if it is the chosen one."""
    own = name == policy.method or (name == PufAuto.name and policy.method == Puf.name)
    return named(name, policy.method_options if own else None)


def stored_history(policy: Forgetting) -> Iterator[StoredHistory]:
    """What is stored for the chosen method, for the fallback, and for methods that the operator may change to."""
    for name in dict.fromkeys((policy.method, policy.fallback, policy.escalate, *policy.also_remember)):
        if name:
            yield _kind(name).stores


def check_optimizer(policy: Forgetting, optimizer: str) -> None:
    """Raises ValueError if a method needs models that are plain averages, but the server steps by moments."""
    for name in dict.fromkeys((policy.method, policy.fallback, policy.escalate, *policy.also_remember)):
        if name and _kind(name).plain_averages:
            able = ", ".join(n for n, kind in _METHODS.items() if not kind.plain_averages and n != PufAuto.name)
            raise ValueError(
                f"{name} needs models that are plain averages of updates, but server_optimizer is {optimizer}: use sgd, or "
                f"one of {able}"
            )


def check(policy: Forgetting) -> None:
    """Raises ValueError if a method or an option is wrong."""
    if policy.method == PufAuto.name:
        raise ValueError(
            "puf-auto is puf with adaptive strength: use --forgetting-method puf --forgetting-strength auto"
        )
    method_of(policy)
    for name in policy.also_remember:
        named(name)
    for role, name in (("fallback", policy.fallback), ("method to escalate to", policy.escalate)):
        if name and named(name).requires.target_takes_part:
            raise ValueError(
                f"the {role} serves targets that are gone, but {name} needs the target; use retrain or not"
            )
