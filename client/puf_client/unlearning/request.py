"""The request to be forgotten: built from the options, compared with earlier requests, and filed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from puf_client.options import UnlearnOptions
from puf_client.state.directory import StateDirectory
from puf_client.transport.base import ENDED, Transport
from puf_client.unlearning import sample_list
from puf_common.errors import InvalidArgument, NotNow, UsageError
from puf_common.logging import get_logger
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk

if TYPE_CHECKING:
    from puf_client.worker.trainer import Trainer

log = get_logger("puf_client.unlearning.request")


@dataclass(frozen=True)
class Plan:
    """The request to file; `ticket` if an equal request is already filed."""

    request: tk.UnlearningRequest
    ids: tuple[str, ...] = ()
    ticket: tk.Ticket | None = None
    # Positions of the samples that the request names.
    indices: tuple[int, ...] = ()


def plan(
    options: UnlearnOptions,
    description: pb.DescribeReply,
    state: StateDirectory,
    trainer: Trainer | None,
    tickets: list[tk.Ticket],
) -> Plan:
    """Returns the request that the options describe. Raises for samples that the data does not have.

    Mode, flip side and strength belong to PUF. In a federation with another method the request has only those that the
    options name, and the server refuses them with a reason.
    """
    policy, puf = description.forgetting, description.method in ("", "puf")
    request = tk.UnlearningRequest(
        mode=f"MODE_{options.mode.upper()}" if options.mode else policy.default_mode if puf else None,
        flip=f"FLIP_{options.flip.upper()}" if options.flip else policy.default_flip if puf else None,
        strength=tk.Strength(epochs=options.unlearn_epochs or 0),
        reference=options.reference,
        received_at=options.received.timestamp() if options.received else 0.0,
    )
    regular = request.mode != tk.MODE_SPECIAL
    if options.eta_u is not None:
        request.strength.eta_u = options.eta_u
    elif options.kappa is not None:
        request.strength.kappa = options.kappa
    elif options.strength == "auto" or (options.strength is None and policy.default_auto and regular):
        request.strength.auto = True
    elif puf:
        request.strength.kappa = policy.default_kappa
    if puf and not request.strength.epochs and not request.strength.auto:
        request.strength.epochs = policy.default_epochs
    if not options.names_samples or trainer is None:
        return _whole_client(request, tickets)
    if options.forget is not None:
        indices = sample_list.read(options.forget, trainer.data.ids, trainer.data.groups)
    else:
        indices = _of_classes(options, trainer, state, tickets)
    return _samples(request, state, trainer.data.ids, indices, tickets)


def _of_classes(
    options: UnlearnOptions, trainer: Trainer, state: StateDirectory, tickets: list[tk.Ticket]
) -> list[int]:
    """The samples of the classes. Those that were forgotten before are left out, unless this is the request for all."""
    from puf_client.data.labels import of_classes

    ids = trainer.data.ids
    indices = of_classes(trainer.data, options.forget_class)
    key = state.request_key(tuple(ids[i] for i in indices))
    gone = state.excluded(ids)
    left = [i for i in indices if not gone[i]]
    return left if left and not any(t.request.request_key.startswith(key) for t in tickets) else indices


def _whole_client(request: tk.UnlearningRequest, tickets: list[tk.Ticket]) -> Plan:
    request.scope = tk.SCOPE_CLIENT
    # The number of earlier requests makes a new key after a withdrawn request.
    request.request_key = f"client-{len(tickets)}"
    standing = next((t for t in tickets if t.request.scope == tk.SCOPE_CLIENT and t.state not in ENDED), None)
    return Plan(standing.request if standing else request, ticket=standing)


def _samples(
    request: tk.UnlearningRequest,
    state: StateDirectory,
    ids: Sequence[str],
    indices: list[int],
    tickets: list[tk.Ticket],
) -> Plan:
    chosen = tuple(ids[i] for i in indices)
    key = state.request_key(chosen)
    asked = [t for t in tickets if t.request.request_key.startswith(key)]
    standing = next((t for t in asked if t.state not in ENDED or t.state == tk.TICKET_STATE_COMPLETED), None)
    if standing is not None:
        return Plan(standing.request, chosen, standing, tuple(indices))
    # This request failed, or the server withdrew it when another one took it over. Its samples are not forgotten yet.
    again_of = next(
        (t for t in asked if (kept := state.exclusion(t.request.request_key)) is not None and kept.effective), None
    )
    gone = state.excluded(ids)
    if again_of is not None:
        gone[indices] = False
    again = [ids[i] for i in indices if gone[i]]
    if again:
        raise UsageError(
            f"already forgotten: {', '.join(again[:5])}{', ...' if len(again) > 5 else ''}; nothing was filed"
        )
    remaining = len(ids) - int(gone.sum()) - len(indices)
    if remaining == 0:
        raise UsageError("no sample would remain: omit --forget to have the whole client forgotten")
    request.scope = tk.SCOPE_SAMPLES
    request.request_key = f"{key}-{len(asked)}" if asked else key
    request.forget_samples, request.retain_samples = len(indices), remaining
    request.replaces = again_of.id if again_of is not None else ""
    return Plan(request, chosen, indices=tuple(indices))


def try_out(wanted: Plan, transport: Transport) -> None:
    """Has the server perform all checks of a new request, without filing it. Raises what filing would raise."""
    if wanted.ticket is None:
        with _policy():
            transport.file_unlearning(pb.FileUnlearningRequest(request=wanted.request, dry_run=True))


@contextmanager
def _policy() -> Iterator[None]:
    """The federation's policy refuses the request; the command line is correct."""
    try:
        yield
    except InvalidArgument as error:
        raise NotNow(error.message, **error.facts) from None


def file(wanted: Plan, state: StateDirectory, transport: Transport) -> tk.Ticket:
    """Stores the samples of the request, files it, and stores the ticket. A kill in between loses nothing."""
    key = wanted.request.request_key
    if wanted.ids:
        state.prepare(key, wanted.ids)
    # The samples stay stored after an error and after a refusal: a delayed copy of the message may still be filed.
    with _policy():
        reply = transport.file_unlearning(pb.FileUnlearningRequest(request=wanted.request))
    ticket = reply.ticket
    if ticket.request.request_key == key and wanted.ids:
        state.filed(key, ticket.id)
    elif wanted.ids:
        raise NotNow(f"{ticket.id} already requests that the whole client is forgotten", ticket=ticket.id)
    log.info("filed", ticket=ticket.id, duplicate=reply.duplicate, worker_alive=ticket.worker_alive)
    return ticket
