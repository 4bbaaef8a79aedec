"""What happens to the servers and clients of a simulated federation: faults, requests of owners, acts of the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from puf_common.errors import PufError
from puf_server.core import roster
from puf_server.core.state.members import MemberStatus
from tests.sim.client import Client

if TYPE_CHECKING:
    from tests.sim.world import World


class Actions:
    def __init__(self, world: World) -> None:
        self._world = world

    def opening(self) -> None:
        self._world.healing = False
        for server in self._world.servers:
            server.start()
        for client in self._world.clients:
            late = self._world.strikes("latecomers")
            self._world.after(self._world.rng.uniform(0.0, 900.0 if late else 20.0), client.start)
            self._world.after(self._world.rng.uniform(60.0, 300.0), self._fate, client)
        self._world.after(self._world.rng.uniform(60.0, 300.0), self._operator)
        if self._world.strikes("everybody_asks"):
            self._world.after(self._world.rng.uniform(300.0, self._world.scenario.chaos_seconds), self._everybody)

    def _everybody(self) -> None:
        for client in self._world.clients:
            self._world.after(self._world.rng.uniform(0.0, 5.0), client.ask)

    def _fate(self, client: Client) -> None:
        """Lets faults happen to a client, or lets its owner ask for something."""
        if self._world.healing:
            return
        self._world.after(self._world.rng.uniform(60.0, 300.0), self._fate, client)
        if self._world.strikes("crash_client"):
            client.kill()
            self._world.after(self._world.rng.uniform(1.0, 600.0), self._restart, client)
        elif self._world.strikes("lose_state"):
            client.lose_state()
            self._world.after(self._world.rng.uniform(1.0, 100.0), self._restart, client)
            self._world.after(self._world.rng.uniform(300.0, 900.0), client.name_again)
        elif self._world.strikes("freeze_client"):
            client.freeze(self._world.rng.uniform(5.0, 400.0))
        elif self._world.strikes("leave"):
            client.leave()
            self._world.after(self._world.rng.uniform(10.0, 600.0), self._restart, client)
        if self._world.strikes("client_clock_jump"):
            client.skew = self._world.rng.choice([40 * 86400.0, -40 * 86400.0])
            self._world.log(f"the clock of {client.name} jumps by {client.skew:+.0f} s")
            self._world.after(self._world.rng.uniform(30.0, 600.0), setattr, client, "skew", 0.0)
        if client.forgotten and self._world.strikes("stubborn"):
            client.start(rejoin=self._world.rng.random() < 0.3)
        if self._world.rng.random() < self._world.scenario.requests:
            strength: dict[str, Any] = self._world.rng.choice(
                [{}, {"kappa": self._world.rng.choice([0.5, 3.0, 4.0])}, {"eta_u": 5.0}]
            )
            samples, late = self._world.rng.random() < 0.4, self._world.rng.choice([0.0, 0.0, 0.0, 40 * 86400.0])
            strength["mode"] = self._world.rng.choice([None, "regular", "special"])
            strength["flip"] = self._world.rng.choice([None, "client", "server"])
            puf = self._world.scenario.config.forgetting.method == "puf"
            client.ask(samples=samples, late=late, **(strength if puf else {}))
        elif self._world.rng.random() < 0.3:
            client.follow()

    def _restart(self, client: Client) -> None:
        if not client.forgotten:
            client.start()

    def _operator(self) -> None:
        if self._world.healing:
            return
        self._world.after(self._world.rng.uniform(60.0, 400.0), self._operator)
        server = self._world.choose_server()
        if len(self._world.servers) > 1 and self._world.strikes("freeze_server"):
            server.freeze(self._world.rng.uniform(5.0, 200.0))
            server = self._world.choose_server()
        if self._world.strikes("crash_server"):
            server.crash("killed")
        if not server.up:
            return
        try:
            state = server.engine.state
            if self._world.strikes("pause"):
                server.run(server.pause)
                self._world.after(self._world.rng.uniform(10.0, 200.0), self._resume)
            elif state.halted or (state.paused and self._world.rng.random() < 0.5):
                server.run(server.resume)
            if self._world.strikes("operator_forgets"):
                # In most cases a client that is absent.
                name = self._world.rng.choice(sorted(state.members) or ["nobody"])
                server.run(lambda: server.forget(name))
            if self._world.strikes("restore"):
                server.run(lambda: self._world.backups.restore(server))
                return
            if self._world.strikes("backup"):
                server.run(lambda: self._world.backups.make(server))
            if self._world.strikes("clock_jump"):
                self._world.skew = self._world.rng.choice([40 * 86400.0, -40 * 86400.0, 7200.0, -7200.0, 30.0])
                self._world.log(f"the clock jumps by {self._world.skew:+.0f} s")
                self._world.after(self._world.rng.uniform(30.0, 600.0), self._set_clock)
            if self._world.strikes("bit_flip"):
                self._world.log(f"a bit flips in {server.store.flip_a_bit(self._world.rng.choice)}")
                self._world.after(self._world.rng.uniform(30.0, 600.0), server.store.mend)
            if self._world.strikes("row_flip"):
                self._world.log(f"a bit flips in the record {server.store.flip_a_row(self._world.rng.choice)}")
                self._world.after(self._world.rng.uniform(30.0, 600.0), server.store.mend)
            if self._world.strikes("long_reader"):
                server.store.long_reader = True
                self._world.after(self._world.rng.uniform(30.0, 600.0), self._end_reader)
            if self._world.strikes("extend"):
                server.run(lambda: server.extend(self._world.rng.randint(1, 3)))
            gone = sorted(n for n, m in state.members.items() if m.status is MemberStatus.FORGOTTEN)
            if gone and self._world.strikes("readmit"):
                name = self._world.rng.choice(gone)
                server.run(lambda: server.readmit(name))
                client = self._world.client(name)
                self._world.after(self._world.rng.uniform(1.0, 100.0), self._rejoin, client)
            away = [
                n
                for n in sorted(state.members)
                if not roster.worker_alive(server.engine.presence, n, server.engine.config, self._world.now)
            ]
            if away and self._world.strikes("forget_absent"):
                server.run(lambda: server.forget(self._world.rng.choice(away)))
            if self._world.strikes("stop"):
                server.run(server.stop)
                for each in self._world.servers:
                    self._world.after(3.0, each.crash, "stopped by the operator")
        except PufError as error:
            self._world.log(f"the operator hears: {error}")

    def reopened(self, name: str) -> None:
        """A restored server opened a request again. Its owner may switch off the client and have it forgotten as a whole."""
        client = self._world.client(name)
        if self._world.strikes("leave_after_restore"):
            client.switch_off()
            self._world.after(self._world.rng.uniform(1.0, 60.0), client.ask)
            self._world.after(self._world.rng.uniform(300.0, 900.0), self._restart, client)

    def _set_clock(self) -> None:
        self._world.skew = 0.0

    def _end_reader(self) -> None:
        self._world.server.store.long_reader = False

    def _rejoin(self, client: Client) -> None:
        client.start(rejoin=True)

    def _resume(self) -> None:
        try:
            server = self._world.choose_server()
            server.run(server.resume)
        except PufError:
            self._world.after(5.0, self._resume)

    def heal(self) -> None:
        """Ends all faults and requests, and restarts all clients. Everything in progress must now end."""
        self._world.log("healing")
        self._world.healing = True
        self._set_clock()
        self._end_reader()
        self._world.server.store.mend()
        for server in self._world.servers:
            server.start()
        self._resume()
        # A fold that began earlier may still fail: the operator resumes again.
        self._world.after(30.0, self._resume)
        for client in self._world.clients:
            client.name_again()
            # Forgotten clients try to join, too. They need operator approval.
            self._world.after(
                self._world.rng.uniform(0.0, 60.0), self._rejoin if client.forgotten else self._restart, client
            )
            if client.following:
                self._world.after(self._world.rng.uniform(0.0, 60.0), client.follow)
