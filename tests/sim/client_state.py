"""What a client stores on its disk, and what its processes hold in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from puf_common.errors import PufError
from puf_common.receipts.gap import DoseReport, Gap
from puf_server.core.state.measurements import Sums
from puf_server.core.state.tickets import TicketState
from tests.tables import by_class

if TYPE_CHECKING:
    from tests.sim.world import World


@dataclass
class Exclusion:
    ids: frozenset[int]
    ticket: str = ""
    withdrawn: bool = False
    # The owner withdraws it. Without that, the client ignores a server that calls it withdrawn.
    withdrawing: bool = False


@dataclass
class Process:
    """What ends with a process. After its end (`alive` is False) late replies have no effect."""

    instance: str = ""
    alive: bool = True
    frozen: bool = False
    session: str = ""
    announced: int = -1
    membership: int = 0
    training: str = ""
    waiting: bool = False
    # Updates refused in a row. A worker exits after three.
    refused: int = 0
    cache: dict[str, tuple[frozenset[int], str]] = field(default_factory=dict)


class ClientState:
    """The disk of a client, its processes, and calls of those processes to the server."""

    def __init__(self, world: World, name: str, samples: int, holdout: int) -> None:
        self.world = world
        self.name = name
        self.ids = frozenset(range(samples))
        self.holdout = holdout
        # Whether the owner's process has the data and can be the worker.
        self.stands_in = world.rng.random() < 0.5
        # Disk.
        self.exclusions: dict[str, Exclusion] = {}
        # Exclusions of a lost disk. The owner still knows them.
        self._lost: dict[str, Exclusion] = {}
        self.forgotten = False
        self.membership = 0
        self.asked = 0
        # Processes.
        self.worker: Process | None = None
        self.owner: Process | None = None
        self.following = ""
        self._instances = 0

    def _call(self, process: Process | None, serve: Callable[[], Any], done: Callable[[Any], None]) -> None:
        def heard(answer: Any) -> None:
            if process is None or (process.alive and not process.frozen):
                done(answer)
            elif process.alive:
                self.world.after(5.0, heard, answer)

        self.world.call(serve, heard)

    def _count(self) -> frozenset[int]:
        gone: frozenset[int] = frozenset().union(
            *(e.ids for e in self.exclusions.values() if e.ticket and not e.withdrawn)
        )
        return self.ids - gone

    def _settled(self, process: Process, then: Callable[[], None]) -> None:
        """Asks the server about requests of which the client does not know whether they were filed."""
        if all(e.ticket and not (e.withdrawing and not e.withdrawn) for e in self.exclusions.values()):
            then()
            return

        def told(answer: Any) -> None:
            if isinstance(answer, PufError):
                self.world.after(5.0, self._again, process, lambda: self._settled(process, then))
                return
            for ticket in answer:
                known = self.exclusions.get(ticket.request.key)
                if known is not None:
                    gone = ticket.state is TicketState.WITHDRAWN and (known.withdrawing or known.withdrawn)
                    known.ticket, known.withdrawn = ticket.id, gone
            then()

        self._call(process, lambda: self.world.server.tickets_of(self.name), told)

    def _again(self, process: Process, then: Callable[[], None]) -> None:
        if process.alive and not process.frozen:
            then()
        elif process.alive:
            self.world.after(5.0, self._again, process, then)


def score(seed: int, name: str, digest: str, samples: int) -> Sums:
    """What a client measures on a model. It depends on the seed, the client and the model only."""
    drawn = _drawn(seed, name, digest)
    classes = by_class((samples,), (samples * drawn,), (samples * drawn**2,)) if samples else None
    return Sums(samples=samples, loss_sum=float(samples), score_sum=samples * (0.5 + drawn / 2), classes=classes)


def chosen_dose(seed: int, name: str, digest: str, options: Mapping[str, float]) -> DoseReport:
    """The strength that a target chooses for a model, and the gap that it states."""
    least, most = options["min_kappa"], options["max_kappa"]
    if options.get("may_skip") and _drawn(seed, name, f"skip {digest}") < 0.2:
        least = most = 0.0
    kappa = least + _drawn(seed, name, f"kappa {digest}") * (most - least)
    gap = Gap(value=_drawn(seed, name, f"gap {digest}") - 0.4, error=0.05)
    return DoseReport(kappa=kappa, gap=gap, hold=gap.value <= 0.2)


def _drawn(seed: int, name: str, digest: str) -> float:
    return hashlib.sha256(f"{seed}|{name}|{digest}".encode()).digest()[0] / 255
