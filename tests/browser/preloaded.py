"""A state directory with many clients, rounds, models and audit entries, written in one transaction."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.running import make_state, tiny_config

from puf_server.core.state.measurements import Sums
from puf_server.core.state.members import Member, MemberStatus
from puf_server.core.state.models import ModelStatus, ModelVersion
from puf_server.core.state.rounds import RoundKind, RoundRecord
from puf_server.core.state.state import State
from puf_server.storage.database import append_audit, connect
from puf_server.storage.state_store import Store

_DAY = 86400.0


def preloaded(directory: Path, *, clients: int, rounds: int, **config: Any) -> Path:
    """A federation with this many clients and committed rounds. Every hundredth round forgot a client."""
    make_state(directory, tiny_config(plan={"rounds": rounds, "absent_seconds": 1e6}, **config))
    store = Store.open(directory)
    state = store.load()
    now = time.time()
    members = {name: member(name, rounds, now) for name in (f"clinic-{i:04d}" for i in range(clients))}
    after = replace(
        state,
        number=rounds,
        version=rounds,
        trained=rounds,
        planned=rounds,
        members={**members, "clinic-held": replace(member("clinic-held", rounds, now), on_hold="announces too much")},
        records={n: record(n, rounds, clients, now) for n in range(1, rounds + 1)},
        models={0: state.models[0], **{n: model(n, rounds, state, now) for n in range(1, rounds + 1)}},
    )
    # Only the initial model has a file: the others count as deleted.
    store.save(state, after)
    store.close()
    db = connect(directory / "state.db")
    with db:
        db.execute("BEGIN IMMEDIATE")
        for n in range(1, rounds + 1):
            append_audit(db, now - (rounds - n), "round.committed", {"round": n, "kind": "train", "version": n})
    db.close()
    return directory


def add_entries(directory: Path, count: int, **facts: Any) -> None:
    """Appends audit entries as another process does."""
    db = connect(directory / "state.db")
    with db:
        db.execute("BEGIN IMMEDIATE")
        for i in range(count):
            append_audit(db, time.time(), "test.entry", {"number": i, **facts})
    db.close()


def member(name: str, rounds: int, now: float) -> Member:
    return Member(
        name=name,
        membership=1,
        status=MemberStatus.ACTIVE,
        samples=100,
        holdout=20,
        generation=1,
        session=f"s-{name}",
        instance=f"i-{name}",
        device="cpu",
        joined_at=now,
        first_round=1,
        last_round=rounds,
    )


def record(number: int, rounds: int, clients: int, now: float) -> RoundRecord:
    opened = now - 30.0 * (rounds - number + 1)
    return RoundRecord(
        number=number,
        attempt=1,
        kind=RoundKind.UNLEARN if number % 100 == 0 else RoundKind.TRAIN,
        base=number - 1,
        version=number,
        expected=clients,
        contributions=clients - number % 3,
        opened_at=opened,
        committed_at=opened + 22.0 + number % 5,
        closed_at=opened + 20.0 + number % 5,
        nbytes_up=10_000_000 + number % 7 * 100_000,
        nbytes_down=12_000_000,
        samples_processed=100 * clients,
        train_loss=2.0 / math.sqrt(number),
        tickets=(),
    )


def model(number: int, rounds: int, state: State, now: float) -> ModelVersion:
    score = 1 - 0.8 / math.sqrt(number) - (0.2 if number % 100 == 0 else 0.0)
    newest = number == rounds
    return ModelVersion(
        version=number,
        round=number,
        digest=state.models[0].digest if newest else f"{number:064x}",
        nbytes=state.models[0].nbytes,
        status=ModelStatus.DELETED,
        created_at=now - 30.0 * (rounds - number),
        score=Sums(samples=1000, loss_sum=10.0, score_sum=1000 * max(score, 0.0)),
        score_clients=50,
    )
