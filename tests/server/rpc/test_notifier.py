"""Who waits is woken by what can concern it, and by nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from puf_server.core.state.members import Member, MemberStatus
from puf_server.core.state.rounds import Assignment, Part, ReceivedUpdate, Round, RoundKind
from puf_server.core.state.state import State
from puf_server.rpc.notifier import Changes, concerns_waiters


def a_round(*received: str) -> Round:
    update = ReceivedUpdate(digest="d", samples=1, nbytes=4, train_loss=None, samples_processed=1, at=2.0)
    return Round(
        number=1,
        attempt=1,
        kind=RoundKind.TRAIN,
        base=0,
        lr=0.1,
        assignments=tuple(
            Assignment(client=name, membership=1, part=Part.MAIN, samples=1) for name in ("anna", "bert")
        ),
        opened_at=1.0,
        received=dict.fromkeys(received, update),
    )


def test_presence_and_arrivals_concern_nobody() -> None:
    state = State(round=a_round())
    assert not concerns_waiters(state, state)
    assert not concerns_waiters(state, replace(state, round=a_round("anna/main")))


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


class Desk:
    """What a waiter looks at: a state, and how often it did."""

    def __init__(self) -> None:
        self.state = State()
        self.changes = Changes(self.state)
        self.asked = 0

    def becomes(self, state: State) -> None:
        self.state = state
        self.changes.notify(state)

    def waits_for(self, number: int, seconds: float = 60.0) -> asyncio.Task[bool]:
        def ready() -> bool:
            self.asked += 1
            return self.state.number >= number

        return asyncio.create_task(self.changes.until(ready, seconds))


async def _turn(times: int = 3) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


def test_what_is_there_already_is_not_waited_for() -> None:
    async def scene() -> bool:
        return await Desk().waits_for(0, seconds=0.0)

    assert asyncio.run(scene())


def test_a_waiter_is_not_even_asked_about_arrivals_and_gives_up_in_time() -> None:
    async def scene() -> tuple[bool, int]:
        desk = Desk()
        waiting = desk.waits_for(1, seconds=0.05)
        await _turn()
        desk.becomes(replace(desk.state, round=desk.state.round))
        return await waiting, desk.asked

    assert asyncio.run(scene()) == (False, 1)


def test_only_those_wake_for_whom_there_is_something() -> None:
    async def scene() -> list[bool]:
        desk = Desk()
        first, second = desk.waits_for(1), desk.waits_for(2)
        await _turn()
        desk.becomes(State(number=1))
        assert await first
        woken_too = second.done()
        desk.becomes(State(number=2))
        return [woken_too, await second]

    assert asyncio.run(scene()) == [False, True]


def test_many_changes_in_a_row_are_one_question_and_the_last_is_not_missed() -> None:
    async def scene() -> tuple[bool, int, bool]:
        desk = Desk()
        waiting = [desk.waits_for(19) for _ in range(50)]
        await _turn()
        for number in range(1, 20):
            desk.becomes(State(number=number))
        woken = all(await asyncio.gather(*waiting))
        asked, later = desk.asked, desk.waits_for(20)
        await _turn()
        desk.becomes(State(number=20))
        return woken, asked, await later

    assert asyncio.run(scene()) == (True, 100, True)


def test_whoever_hangs_up_is_forgotten() -> None:
    async def scene() -> int:
        desk = Desk()
        waiting = desk.waits_for(1)
        await _turn()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        desk.becomes(State(number=1))
        await _turn()
        return desk.asked

    assert asyncio.run(scene()) == 1


def test_a_question_that_fails_wakes_its_own_waiter_and_nobody_goes_without() -> None:
    async def scene() -> tuple[bool, bool]:
        desk = Desk()
        first = True

        def broken() -> bool:
            nonlocal first
            if first:
                first = False
                return False
            raise ValueError("cannot be asked")

        failing = asyncio.create_task(desk.changes.until(broken, 60.0))
        other = desk.waits_for(1)
        await _turn()
        desk.becomes(State(number=1))
        return await failing, await other

    assert asyncio.run(scene()) == (True, True)
