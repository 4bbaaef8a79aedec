"""Backups of a simulated federation, and restores that show every receipt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from puf_common.errors import StorageCorrupted, TransferCorrupted
from puf_common.receipts.content import ReceiptContent
from puf_server.core.unlearning import reopen
from tests.sim.server import SimServer

if TYPE_CHECKING:
    from tests.sim.world import World


class Backups:
    def __init__(self, world: World) -> None:
        self._world = world
        self._made: list[tuple[Any, ...]] = []
        # The receipts that were issued, by ticket.
        self.receipts: dict[str, ReceiptContent] = {}

    def make(self, server: SimServer) -> None:
        """A backup of a sound database: the real one refuses to copy damaged rows."""
        server.store.load()
        self._world.log("backup made")
        self._made.append(server.store.snapshot())

    def restore(self, server: SimServer) -> None:
        """Replaces the state by an older backup and shows it every receipt."""
        if not self._made:
            return
        world, store = self._world, server.store
        world.log("an older backup is restored")
        store.put_back(world.rng.choice(self._made))
        if store.time is not None:
            # The server believes the time of the backup, which may be from the future if its clock was wrong.
            world.accepted = store.time - world.now
        before = store.load()
        world.checker.restored(before)
        after = reopen.restored(before, world.now)
        for content in self.receipts.values():
            try:
                after, _, _ = reopen.reopen(after, store.config, content, world.now)
            except (StorageCorrupted, TransferCorrupted) as error:
                # The operator leaves it out.
                world.log(f"a receipt is not believed: {error}")
        # The operator repeats a restore until it is done.
        with world.without_faults():
            store.save(before, after)
        if server.view is not None:
            server.view.common.replaced(store.load())
        known = {t.id for t in before.tickets.values() if t.reopened}
        for ticket in after.tickets.values():
            if ticket.reopened and ticket.id not in known:
                world.actions.reopened(ticket.client)
        for each in world.servers:
            each.crash("the machine was replaced")
