"""A federation of real processes that the lab drives as it drives one in this process: server, clients, gRPC between them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from puf_client.state.directory import StateDirectory
from puf_common.errors import PufError
from puf_common.tensors.model_file import read_payload
from puf_common.v1 import federation_pb2 as fed
from puf_lab.experiments.setting import Setting, Spent, client_name
from puf_lab.federations.in_process import create_server, leave_out
from puf_lab.federations.processes import Process, ServerProcess, distiller, fleet, unlearn_command, wait_until

__all__ = ["ProcessFederation"]

_SECONDS = 24 * 3600.0
_POLL = 0.05


class ProcessFederation:
    """`puf-server serve` and one `puf-client` per shard on this machine, ended when it is left."""

    def __init__(
        self,
        setting: Setting,
        directory: Path,
        *,
        without: Collection[int] = (),
        without_samples: Mapping[int, Sequence[str]] | None = None,
    ) -> None:
        self._setting = setting
        self._directory = directory.resolve()
        self._clients = self._directory / "clients"
        shards = [i for i in range(setting.clients) if i not in without]
        if not (directory / "server").exists():
            plan = {"heartbeat_seconds": 1.0, "absent_seconds": 10.0, "min_clients": 1}
            config = setting.federation(clients=len(shards), keep_models=1, **plan)
            create_server(config, directory / "server", setting.weights)
        self._without, self._left_out = without, without_samples or {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._server = ServerProcess(self._directory / "server", self._directory / "server.log")
            self._stack.enter_context(self._server)
            federation = self._server.control.status().federation_id
            for shard, ids in self._left_out.items():
                leave_out(StateDirectory.of(federation, client_name(shard), self._clients), ids)
            # Whoever takes no part must have left before the next round opens.
            self._server.control.pause()
            log = self._directory / "fleet.log"
            self._crew = self._stack.enter_context(
                fleet(self._setting, self._server, self._clients, log, without=sorted(self._without))
            )
            if self._setting.public:
                log = self._directory / "distiller.log"
                self._stack.enter_context(distiller(self._setting, self._server, self._clients, log))
            expected = self._setting.shards - len(self._without)
            self._wait(lambda: self._alive() == expected)
            self._server.control.resume()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def train(self, tick: Callable[[int], None] = lambda rounds: None) -> None:
        told = self._server.control.status().rounds_trained

        def idle() -> bool:
            nonlocal told
            status = self._server.control.status()
            if status.rounds_trained > told:
                tick(status.rounds_trained - told)
                told = status.rounds_trained
            return bool(status.position.phase == fed.PHASE_IDLE and status.rounds_trained >= status.rounds_planned)

        self._wait(idle)

    def extend(self, rounds: int) -> None:
        self._server.control.extend(rounds)

    def forget(
        self,
        targets: Collection[int],
        *,
        mode: str | None = None,
        kappa: float | None = None,
        eta_u: float | None = None,
        epochs: int = 0,
        samples: Mapping[int, Sequence[str]] | None = None,
    ) -> None:
        flags = ["--mode", mode] if mode else []
        for flag, value in (("--kappa", kappa), ("--eta-u", eta_u), ("--unlearn-epochs", epochs or None)):
            flags += [flag, str(value)] if value is not None else []
        # As an operator would: without the pause the first to ask would have a round of its own.
        self._server.control.pause()
        with ExitStack() as leaving:
            asking = []
            for shard in sorted(targets):
                more = [*flags]
                if samples and shard in samples:
                    names = self._directory / f"forget-{shard}.txt"
                    names.write_text("".join(f"{name}\n" for name in samples[shard]))
                    more += ["--forget", str(names)]
                command = unlearn_command(self._setting, self._server, self._clients, shard, *more)
                asking.append(leaving.enter_context(Process(command, self._directory / f"unlearn-{shard}.log")))
            self._wait(lambda: len(self._server.control.tickets()) >= len(asking), *asking)
            self._server.control.resume()
            for process in asking:
                wait_until(lambda p=process: p.code is not None, _SECONDS, self._server, poll=_POLL)  # type: ignore[misc]
                if process.code:
                    raise PufError(f"puf-client --unlearn ended with code {process.code}:\n{process.tail(10)}")
        self.train()

    def payload(self) -> bytearray:
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "model.safetensors"
            self._server.control.export(path, unready=True)
            return bytearray(read_payload(path))

    def spent(self) -> Spent:
        rounds = self._server.control.rounds(limit=1_000_000)
        return Spent.of((r.bytes_up, r.bytes_down, r.samples_processed) for r in rounds if r.phase == "committed")

    def _alive(self) -> int:
        return int(self._server.control.status().clients_alive)

    def _wait(self, done: Callable[[], bool], *others: Process) -> None:
        wait_until(done, _SECONDS, self._server, self._crew, *others, poll=_POLL)
