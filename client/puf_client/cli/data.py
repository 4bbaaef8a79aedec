"""`puf-client data used | exclude`: what was done with a sample, and naming forgotten ones after a lost directory."""

from __future__ import annotations

import json
from collections.abc import Sequence

from puf_client.cli.options import DataOptions
from puf_client.state.directory import StateDir
from puf_client.state.usage import Ledger, Used
from puf_client.transport.dial import dial
from puf_client.unlearning import sample_list
from puf_client.unlearning.tickets import state_name
from puf_client.worker.display import console
from puf_common.config.exit_codes import Exit
from puf_common.errors import NotFound, UsageError
from puf_common.v1 import tickets_pb2 as tk

__all__ = ["exclude", "used"]


def used(options: DataOptions, ids: Sequence[str], *, as_json: bool = False) -> Exit:
    """First and last round of each sample, in every federation this client has a directory for. Without any network."""
    found = StateDir.all_of(options.name, options.state)
    if not found:
        raise UsageError(f"nothing is kept here of a client {options.name}: is this its machine, and its --state?")
    out, told = console(), []
    for federation, state in found:
        ledger, excluded = Ledger(state), state.excluded(ids)
        for sample, gone in zip(ids, excluded, strict=True):
            rounds = ledger.look_up(sample) or Used()
            facts = {"id": sample, "federation": federation, "trained": rounds.trained, "unlearned": rounds.unlearned}
            told.append({**facts, "excluded": bool(gone)})
            if not as_json:
                out.print(
                    f"{sample}: {_sentence(rounds, excluded=bool(gone))} ({federation})", soft_wrap=True, markup=False
                )
    if as_json:
        out.print(json.dumps(told, indent=1), soft_wrap=True)
    return Exit.OK


def exclude(options: DataOptions, ticket_id: str) -> Exit:
    """Writes down once more which samples a ticket is about, where the directory that knew it is lost."""
    if options.forget is None or not options.data:
        raise UsageError("say which samples: --forget FILE with their ids, and --data as for `puf-client run`")
    from puf_client.data import load_data
    from puf_client.worker.trainer import context_of

    data = load_data(options.data, context_of(options))
    indices = sample_list.read(options.forget, data.ids, data.groups)
    with dial(options, server=options.server, name=options.name, patience=options.patience) as transport:
        description = transport.describe()
        ticket = next((t for t in transport.list_my_tickets().tickets if t.id == ticket_id), None)
    if ticket is None or ticket.request.scope != tk.SCOPE_SAMPLES:
        raise NotFound(f"{ticket_id} is no request of {options.name} for samples", ticket=ticket_id)
    if ticket.state == tk.TICKET_STATE_WITHDRAWN:
        raise UsageError(f"{ticket_id} is {state_name(ticket.state)}: its samples need not stay out")
    if len(indices) != ticket.request.forget_samples:
        raise UsageError(
            f"{ticket_id} is about {ticket.request.forget_samples} samples, {options.forget} names {len(indices)}"
        )
    state = StateDir.of(description.federation_id, options.name, options.state)
    state.prepare(ticket.request.request_key, [data.ids[i] for i in indices])
    state.filed(ticket.request.request_key, ticket.id)
    console().print(f"{len(indices)} samples of {ticket_id} stay out of training from here on")
    return Exit.OK


def _sentence(rounds: Used, *, excluded: bool) -> str:
    words = [
        f"{verb} in round {span[0]}" if span[0] == span[1] else f"{verb} in rounds {span[0]} to {span[1]}"
        for verb, span in (("trained on", rounds.trained), ("used to unlearn", rounds.unlearned))
        if span is not None
    ]
    words = words or ["never handed in from here"]
    return ", ".join([*words, "out of training now"] if excluded else words)
