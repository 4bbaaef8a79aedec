"""The largest norm that an update may have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from puf_server.core import norm_bounds
from puf_server.core.state.rounds import RoundKind, RoundRecord
from puf_server.core.state.state import State
from tests.server.core.builders import Federation, config
from tests.tickets import applied


def trained(names: str = "abcd", **changes: Any) -> Federation:
    f = Federation(config(**{"plan": {"min_clients": len(names)}} | changes))
    f.join(*names)
    f.train()
    return f


def record(number: int, norm: float | None, buffers: float | None = None) -> RoundRecord:
    return RoundRecord(
        number=number, attempt=1, kind=RoundKind.TRAIN, base=0, version=number, expected=1, contributions=1, opened_at=0.0,
        committed_at=0.0, nbytes_up=0, nbytes_down=0, samples_processed=0, train_loss=None, norm=norm,
        buffer_norm=buffers,
    )  # fmt: skip


def after(*records: RoundRecord) -> State:
    return State(number=len(records), records={r.number: r for r in records})


def test_an_update_may_have_ten_times_the_norm_of_recent_rounds() -> None:
    f = Federation(config(limits={"norm_rounds": 2, "max_norm": 1000.0}))
    f.join("a", "b")
    assignment = f.round.assignments[0]

    def most(*records: RoundRecord, epochs: float = 1.0) -> norm_bounds.Norms:
        return norm_bounds.allowed(after(*records), f.config, replace(assignment, epochs=epochs))

    assert most() == norm_bounds.Norms(1000.0, 1e12)
    assert most(record(1, 2.0, 3.0)) == norm_bounds.Norms(20.0, 30.0)
    # The largest recent median. Older rounds and rounds without ordinary updates do not count.
    assert most(record(1, 50.0), record(2, 3.0), record(3, 2.0)).parameters == 30.0
    assert most(record(1, 2.0), record(2, None)).parameters == 20.0
    # A median of 0 is no limit.
    assert most(record(1, 0.0)).parameters == 1000.0
    # More epochs permit a larger update.
    assert most(record(1, 2.0), epochs=3.0).parameters == 60.0
    assert most(record(1, 500.0)).parameters == 1000.0


class LookUpsOnly(dict[int, RoundRecord]):
    def __iter__(self) -> Iterator[int]:
        raise AssertionError("all records were read")


def test_only_recent_rounds_are_read() -> None:
    f = Federation(config(limits={"norm_rounds": 2}))
    f.join("a", "b")
    records = {n: record(n, float(n)) for n in range(1, 100)}
    state = State(number=99, records=LookUpsOnly(records))
    assert norm_bounds.allowed(state, f.config, f.round.assignments[0]).parameters == 990.0


def test_a_round_records_the_median_of_its_ordinary_updates() -> None:
    f = trained("abc")
    ticket = f.file("a")
    f.answer_evaluation(0.8)
    f.submit_all()
    large = {key: replace(u, norm=99.0 if key.startswith("a") else 2.0) for key, u in f.round.received.items()}
    f.state = replace(f.state, round=replace(f.round, received=large))
    f.commit()
    assert applied(f.ticket(ticket.id)).round == 3
    assert f.state.records[3].norm == 2.0
