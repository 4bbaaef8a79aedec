"""Faults in the client's code that the simulator must find. Each function puts one in."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from puf_client.session import reconcile, samples, session, update
from puf_client.session.recent import FetchedModel, Recent
from puf_client.session.session import Session
from puf_client.state.directory import Exclusion, StateDirectory
from puf_client.state.usage import SampleUsage
from puf_client.unlearning import request as requests
from puf_common.errors import UnknownSession
from puf_common.files import new_file
from puf_common.files.new_file import NewFile
from puf_common.tensors import scaling
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk

Mutation = Callable[[pytest.MonkeyPatch], None]


def usage_is_not_recorded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SampleUsage, "note", lambda *_, **__: None)


def usage_is_recorded_after_sending(patch: pytest.MonkeyPatch) -> None:
    note, deliver = samples.KnownSamples.note, Session._deliver
    later: list[tuple[Any, ...]] = []

    def late(self: Session, work: pb.TrainWork, made: update.LocalUpdate) -> bool:
        later.clear()
        taken = deliver(self, work, made)
        for noted in later:
            note(*noted)
        return taken

    patch.setattr(samples.KnownSamples, "note", lambda *noted: later.append(noted))
    patch.setattr(Session, "_deliver", late)


def exclusions_are_ignored(patch: pytest.MonkeyPatch) -> None:
    def none(self: StateDirectory, ids: Sequence[str]) -> NDArray[np.bool_]:
        return np.zeros(len(ids), dtype=np.bool_)

    patch.setattr(StateDirectory, "excluded", none)


def the_last_exclusion_counts(patch: pytest.MonkeyPatch) -> None:
    original = StateDirectory.exclusions
    patch.setattr(StateDirectory, "exclusions", lambda self: original(self)[-1:])


def unknown_exclusions_are_accepted(patch: pytest.MonkeyPatch) -> None:
    from puf_client.session import connect

    for module in (connect, reconcile):
        patch.setattr(module, "agree", lambda state, tickets: None)


def content_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NewFile, "sync", lambda self, target: None)


def names_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NewFile, "sync_name", lambda self, target: None)


def files_are_written_in_place(patch: pytest.MonkeyPatch) -> None:
    from pathlib import Path

    from puf_client.state import directory

    def write_over(path: Path, content: bytes, *, mode: int = 0, files: Any = None) -> None:
        path.unlink(missing_ok=True)
        file = new_file.NewFile(path, files)
        file.write(content)
        file.sync(path)
        file._close()

    patch.setattr(directory, "write_over", write_over)


def the_request_is_stored_after_filing(patch: pytest.MonkeyPatch) -> None:
    original = StateDirectory.prepare
    prepared: dict[str, Iterable[str]] = {}

    def prepare(self: StateDirectory, key: str, ids: Iterable[str]) -> Exclusion:
        prepared[key] = ids
        return Exclusion(key, frozenset())

    def filed(self: StateDirectory, key: str, ticket: str) -> Exclusion:
        return self._write(replace(original(self, key, prepared[key]), ticket_id=ticket))

    patch.setattr(StateDirectory, "prepare", prepare)
    patch.setattr(StateDirectory, "filed", filed)


def the_ticket_is_not_stored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StateDirectory, "filed", lambda self, key, ticket: self.exclusion(key))
    patch.setattr(reconcile, "_settle", lambda state, tickets: None)


def a_request_gets_a_new_key_each_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StateDirectory, "request_key", lambda self, ids: f"samples-{secrets.token_hex(12)}")


def withdrawn_by_the_server_returns_samples(patch: pytest.MonkeyPatch) -> None:
    original = StateDirectory.settle

    def settle(self: StateDirectory, tickets: Iterable[tuple[str, str, bool]]) -> None:
        tickets = list(tickets)
        for key, _, withdrawn in tickets:
            if withdrawn and self.exclusion(key) is not None:
                self.withdrawing(key, True)
        original(self, tickets)

    patch.setattr(StateDirectory, "settle", settle)
    patch.setattr(StateDirectory, "unsettled", lambda self: True)


def a_refused_withdrawal_returns_samples(patch: pytest.MonkeyPatch) -> None:
    def withdrawing(self: StateDirectory, key: str, wanted: bool) -> None:
        self._write(replace(self._known(key), withdrawing=True, withdrawn=True))

    patch.setattr(StateDirectory, "withdrawing", withdrawing)


def _uploads(patch: pytest.MonkeyPatch, change: Callable[[Any, Any], tuple[Any, Any]]) -> None:
    original = update.upload_of

    def upload_of(work: pb.TrainWork, made: update.LocalUpdate, *rest: Any, **more: Any) -> Any:
        return original(*change(work, made), *rest, **more)

    patch.setattr(session, "upload_of", upload_of)


def the_update_is_not_negated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(update, "scale_update", lambda layout, payload, scale, block=0: None)


def the_scale_is_applied_twice(patch: pytest.MonkeyPatch) -> None:
    original = scaling.scale_update

    def twice(layout: Any, payload: Any, scale: float, block: int = 0) -> None:
        original(layout, payload, scale)
        original(layout, payload, scale)

    patch.setattr(update, "scale_update", twice)


def the_scale_is_ignored(patch: pytest.MonkeyPatch) -> None:
    def change(work: pb.TrainWork, made: update.LocalUpdate) -> tuple[pb.TrainWork, update.LocalUpdate]:
        plain = pb.TrainWork()
        plain.CopyFrom(work)
        plain.scale = abs(work.scale)
        return plain, made

    _uploads(patch, change)


def a_repeated_update_is_scaled_in_place(patch: pytest.MonkeyPatch) -> None:
    """The kept update is changed by the first sending, so that the second sends it scaled twice."""
    original = update.upload_of

    def upload_of(work: pb.TrainWork, made: update.LocalUpdate, *rest: Any, **more: Any) -> Any:
        header, sent = original(work, made, *rest, **more)
        made.payload[:] = sent  # type: ignore[index]
        return header, sent

    patch.setattr(session, "upload_of", upload_of)


def updates_outlive_a_restored_server(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recent, "outdate", lambda self: None)
    _without_digest(patch)


def _without_digest(patch: pytest.MonkeyPatch) -> None:
    _uploads(patch, lambda work, made: (work, replace(made, base_digest=b"")))


def the_first_model_is_used_for_all(patch: pytest.MonkeyPatch) -> None:
    def model(self: Recent, version: int, fetch: Callable[[], FetchedModel]) -> FetchedModel:
        if not self._models:
            self._models[version] = fetch()
        return next(iter(self._models.values()))

    patch.setattr(Recent, "model", model)
    _without_digest(patch)


def the_kept_update_is_sent_for_other_samples(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(update.LocalUpdate, "is_of", lambda self, indices: True)
    patch.setattr(Recent, "drop_updates", lambda self: None)
    patch.setattr(Recent, "update", lambda self, training_id: next(reversed(self._updates.values()), None))


def all_samples_are_unlearned(patch: pytest.MonkeyPatch) -> None:
    def assigned(self: samples.KnownSamples, work: pb.TrainWork) -> NDArray[np.intp]:
        return self.trainable()

    patch.setattr(samples.KnownSamples, "assigned", assigned)


def the_new_count_is_not_announced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Session, "announce", lambda self, samples: None)


def a_lost_session_is_not_joined_again(patch: pytest.MonkeyPatch) -> None:
    def give_up(self: Session, stale: str) -> None:
        self._pause = 1.0

    def attached(self: Session, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except UnknownSession:
            self._pause = 1.0
            return None

    patch.setattr(Session, "_renew", give_up)
    patch.setattr(Session, "_attached", attached)


def only_one_sample_of_a_request_is_stored(patch: pytest.MonkeyPatch) -> None:
    original = requests.file

    def file(wanted: Any, state: StateDirectory, transport: Any) -> tk.Ticket:
        if wanted.ids:
            state.prepare(wanted.request.request_key, wanted.ids[:1])
        return original(wanted, state, transport)

    from puf_client.unlearning import run

    patch.setattr(run, "file", file)


def requests_state_the_clients_clock(patch: pytest.MonkeyPatch) -> None:
    original = requests._whole_client

    def whole_client(request: tk.UnlearningRequest, tickets: list[tk.Ticket]) -> requests.Plan:
        request.received_at = request.received_at or time.time()
        return original(request, tickets)

    patch.setattr(requests, "_whole_client", whole_client)


MUTATIONS: tuple[Mutation, ...] = (
    usage_is_not_recorded,
    usage_is_recorded_after_sending,
    exclusions_are_ignored,
    the_last_exclusion_counts,
    unknown_exclusions_are_accepted,
    content_is_not_synced,
    names_are_not_synced,
    files_are_written_in_place,
    the_request_is_stored_after_filing,
    the_ticket_is_not_stored,
    a_request_gets_a_new_key_each_time,
    withdrawn_by_the_server_returns_samples,
    a_refused_withdrawal_returns_samples,
    the_update_is_not_negated,
    the_scale_is_applied_twice,
    the_scale_is_ignored,
    a_repeated_update_is_scaled_in_place,
    updates_outlive_a_restored_server,
    the_first_model_is_used_for_all,
    the_kept_update_is_sent_for_other_samples,
    all_samples_are_unlearned,
    the_new_count_is_not_announced,
    a_lost_session_is_not_joined_again,
    only_one_sample_of_a_request_is_stored,
    requests_state_the_clients_clock,
)
