"""Compares the data of a request with what was trained on, before the request is filed."""

from __future__ import annotations

import sys

from puf_client.options import UnlearnOptions
from puf_client.session.samples import KnownSamples
from puf_client.terminal import confirm, console
from puf_client.unlearning.request import Plan
from puf_common.errors import Mismatch, NotFound
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk


def known_member(reply: pb.ListMyTicketsReply, name: str) -> pb.RosterEntry:
    """Returns the roster's entry of a client. Raises for a name that never joined."""
    if not reply.HasField("roster"):
        raise NotFound(
            f"{name} is not in this federation: no client of this name ever joined. Check --name and --server",
            client=name,
        )
    return reply.roster


def check_data(samples: KnownSamples, wanted: Plan, roster: pb.RosterEntry, options: UnlearnOptions) -> None:
    """Raises if the data is not what this client trained on. Without a record of it, asks a person.

    A confirmation restores the record, so that the worker of the unlearning round can compare with it.
    """
    if not roster.first_round:
        # No model contains this client: the request completes without an unlearning round.
        return
    if wanted.ticket is not None and wanted.ticket.state == tk.TICKET_STATE_COMPLETED:
        # Nothing is negated any more. The samples may never have been trained on: the request may be older than training.
        return
    request, filed = wanted.request, wanted.ticket is not None
    single = request.scope == tk.SCOPE_SAMPLES
    # A request for samples takes them off the roster when it is filed.
    found = request.retain_samples + (0 if filed else request.forget_samples) if single else len(samples.trainable())
    if samples.recorded(roster.membership):
        named = wanted.indices if single else None
        samples.require_trained(roster.membership, named, grown=found == roster.samples)
        return
    if not roster.active:
        # The client was forgotten. Nothing is negated any more.
        return
    if found != roster.samples and not request.replaces:
        raise Mismatch(
            f"{options.name} announced {roster.samples} samples when it joined, the data has {found}. {_ADVICE}",
            theirs=roster.samples,
            ours=found,
        )
    question = (
        f"{samples.state.path} has no record of the samples that {options.name} trained on, so that only their number could "
        f"be compared: {found}. Other data of the same size would be unlearned unnoticed."
    )
    if options.dry_run:
        console().print(f"{question} The request needs a confirmation or --same-data.", soft_wrap=True)
        return
    if not options.same_data:
        if not sys.stdin.isatty():
            raise Mismatch(f"{question} {_ADVICE}. If it is the data of training, add --same-data")
        confirm(f"{question} Is this the data of training?", options.name)
    samples.restore_record((roster.first_round, roster.last_round), roster.membership)


_ADVICE = "Use the data of training: check --data, --data-option, --shard, --data-seed, --name and --state"
