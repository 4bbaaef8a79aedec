"""Waiters are woken by notifier that can concern them, and by no others."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from puf_server.core.state.members import Member, MemberStatus
from puf_server.core.state.rounds import Assignment, Part, ReceivedUpdate, Round, RoundKind, Step
from puf_server.core.state.state import State
from puf_server.rpc.notifier import Notifier, concerns_waiters


def a_round(*received: str) -> Round:
    update = ReceivedUpdate(digest="d", samples=1, nbytes=4, train_loss=None, samples_processed=1, at=2.0)
    return Round(
        number=1,
        attempt=1,
        kind=RoundKind.TRAIN,
        step=Step(
            base=0,
            assignments=tuple(
                Assignment(client=name, membership=1, part=Part.MAIN, samples=1) for name in ("anna", "bert")
            ),
        ),
        lr=0.1,
        opened_at=1.0,
        received=dict.fromkeys(received, update),
    )


def test_arriving_updates_concern_no_waiter() -> None:
    state = State(round=a_round())
    assert not concerns_waiters(state, state)
    assert not concerns_waiters(state, replace(state, round=a_round("anna/main")))


def test_any_other_change_may_concern_waiters() -> None:
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


class Waiters:
    """A state, waiters that compare it with a number, and how often they did."""

    def __init__(self) -> None:
        self.state = State()
        self.notifier = Notifier(self.state)
        self.evaluated = 0

    def becomes(self, state: State) -> None:
        self.state = state
        self.notifier.notify(state)

    def waits_for(self, number: int, seconds: float = 60.0) -> asyncio.Task[bool]:
        def ready() -> bool:
            self.evaluated += 1
            return self.state.number >= number

        return asyncio.create_task(self.notifier.until(ready, seconds))


async def _turn(times: int = 3) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


def test_a_condition_that_holds_already_is_not_waited_for() -> None:
    async def scene() -> bool:
        return await Waiters().waits_for(0, seconds=0.0)

    assert asyncio.run(scene())


def test_an_arriving_update_evaluates_no_condition_and_the_wait_ends_in_time() -> None:
    async def scene() -> tuple[bool, int]:
        waiters = Waiters()
        waiting = waiters.waits_for(1, seconds=0.05)
        await _turn()
        waiters.becomes(replace(waiters.state, round=waiters.state.round))
        return await waiting, waiters.evaluated

    assert asyncio.run(scene()) == (False, 1)


def test_only_waiters_whose_condition_holds_are_woken() -> None:
    async def scene() -> list[bool]:
        waiters = Waiters()
        first, second = waiters.waits_for(1), waiters.waits_for(2)
        await _turn()
        waiters.becomes(State(number=1))
        assert await first
        woken_too = second.done()
        waiters.becomes(State(number=2))
        return [woken_too, await second]

    assert asyncio.run(scene()) == [False, True]


def test_many_changes_in_a_row_are_one_question_and_the_last_is_not_missed() -> None:
    async def scene() -> tuple[bool, int, bool]:
        waiters = Waiters()
        waiting = [waiters.waits_for(19) for _ in range(50)]
        await _turn()
        for number in range(1, 20):
            waiters.becomes(State(number=number))
        woken = all(await asyncio.gather(*waiting))
        evaluated, later = waiters.evaluated, waiters.waits_for(20)
        await _turn()
        waiters.becomes(State(number=20))
        return woken, evaluated, await later

    assert asyncio.run(scene()) == (True, 100, True)


def test_a_cancelled_waiter_is_removed() -> None:
    async def scene() -> int:
        waiters = Waiters()
        waiting = waiters.waits_for(1)
        await _turn()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        waiters.becomes(State(number=1))
        await _turn()
        return waiters.evaluated

    assert asyncio.run(scene()) == 1


def test_a_condition_that_raises_wakes_its_waiter_and_the_others_are_evaluated() -> None:
    async def scene() -> tuple[bool, bool]:
        waiters = Waiters()
        first = True

        def broken() -> bool:
            nonlocal first
            if first:
                first = False
                return False
            raise ValueError("cannot be evaluated")

        failing = asyncio.create_task(waiters.notifier.until(broken, 60.0))
        other = waiters.waits_for(1)
        await _turn()
        waiters.becomes(State(number=1))
        return await failing, await other

    assert asyncio.run(scene()) == (True, True)
