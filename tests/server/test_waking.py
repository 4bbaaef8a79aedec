"""Who waits is woken by what can concern it, and by nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from puf_server.core.state import Kind, Member, MemberStatus, Part, Received, Round, Slot, State
from puf_server.waking import Changes, concerns_waiters


def a_round(*received: str) -> Round:
    update = Received(digest="d", samples=1, nbytes=4, train_loss=None, samples_processed=1, at=2.0)
    return Round(
        number=1,
        attempt=1,
        kind=Kind.TRAIN,
        base=0,
        lr=0.1,
        slots=tuple(Slot(client=name, membership=1, part=Part.MAIN, samples=1) for name in ("anna", "bert")),
        opened_at=1.0,
        received=dict.fromkeys(received, update),
    )


def test_presence_and_arrivals_concern_nobody() -> None:
    state = State(round=a_round())
    assert not concerns_waiters(state, state)
    assert not concerns_waiters(state, replace(state, seen={"anna": 3.0}, activity={"anna": "training"}))
    assert not concerns_waiters(state, replace(state, round=a_round("anna/main"), nbytes_down=7))


def test_everything_else_may() -> None:
    state = State(round=a_round())
    for after in (
        replace(state, round=None),
        replace(state, round=replace(a_round(), attempt=2)),
        replace(state, round=replace(a_round(), declined={"anna/main": "out of memory"})),
        replace(state, stopping=True),
        replace(state, paused=True),
        replace(state, number=1),
        replace(state, tickets={}),
        state.with_member(
            Member(
                name="anna",
                membership=1,
                status=MemberStatus.ACTIVE,
                samples=1,
                holdout=0,
                generation=2,
                session="2.x",
                instance="i",
                device="cpu",
                joined_at=0.0,
            )
        ),
    ):
        assert concerns_waiters(state, after)


def test_a_waiter_sleeps_through_arrivals_and_wakes_for_a_round() -> None:
    async def scene() -> list[bool]:
        changes = Changes(State())
        event = changes.next()
        changes.notify(State(seen={"anna": 1.0}))
        first = await changes.before(event, 0.0)
        waiting = asyncio.create_task(changes.before(changes.next(), 60.0))
        changes.notify(State(round=a_round()))
        return [first, await waiting]

    assert asyncio.run(scene()) == [False, True]


def test_many_changes_in_a_row_wake_once_more_with_the_last() -> None:
    async def scene() -> tuple[bool, bool]:
        changes = Changes(State())
        first = [asyncio.create_task(changes.before(changes.next(), 60.0)) for _ in range(50)]
        await asyncio.sleep(0)
        for number in range(1, 20):
            changes.notify(State(number=number))
        woken = await asyncio.gather(*first)
        later = changes.next()
        changes.notify(State(number=20))
        return all(woken), await changes.before(later, 60.0)

    assert asyncio.run(scene()) == (True, True)
