"""A federation of one server process and one process per client, driven like one in this process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self, Unpack

from puf_client.state.directory import StateDirectory
from puf_common.errors import PufError
from puf_common.tensors.model_file import read_payload
from puf_common.v1 import federation_pb2 as fed
from puf_lab.federations.base import Spent, Strength
from puf_lab.federations.processes import Process, ServerProcess, distiller, fleet, unlearn_command, wait_until
from puf_lab.federations.state_directories import create_server, leave_out
from puf_lab.spec.federation import FederationSpec, client_name

_PLAN = {"heartbeat_seconds": 1.0, "absent_seconds": 10.0, "min_clients": 1, "keep_models": 1}
_SECONDS = 24 * 3600.0
_POLL = 0.05


class ProcessFederation:
    """`puf-server serve` and one `puf-client` per shard on this machine. They end when the context is left."""

    def __init__(
        self,
        spec: FederationSpec,
        directory: Path,
        *,
        without: Collection[int],
        without_samples: Mapping[int, Sequence[str]],
    ) -> None:
        self._spec = spec
        self._directory = directory.resolve()
        self._clients = self._directory / "clients"
        if not (directory / "server").exists():
            clients = sum(i not in without for i in range(spec.clients))
            create_server(spec, spec.server_config(clients=clients, plan=_PLAN), directory / "server")
        self._without, self._left_out = without, without_samples
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._server = stack.enter_context(ServerProcess(self._directory / "server", self._log("server")))
            federation = self._server.control.status().federation_id
            for shard, ids in self._left_out.items():
                leave_out(StateDirectory.of(federation, client_name(shard), self._clients), ids)
            # No round may open before the clients that take no part are known to be absent.
            self._server.control.pause()
            self._fleet = stack.enter_context(
                fleet(self._spec, self._server, self._clients, self._log("fleet"), without=sorted(self._without))
            )
            if self._spec.data.public:
                stack.enter_context(distiller(self._spec, self._server, self._clients, self._log("distiller")))
            expected = self._spec.shards - len(self._without)
            self._wait(lambda: self._server.control.status().clients_alive == expected)
            self._server.control.resume()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def train(self, tick: Callable[[int], None] = lambda rounds: None) -> None:
        trained = self._server.control.status().rounds_trained

        def idle() -> bool:
            nonlocal trained
            status = self._server.control.status()
            if status.rounds_trained > trained:
                tick(status.rounds_trained - trained)
                trained = status.rounds_trained
            return bool(status.position.phase == fed.PHASE_IDLE and status.rounds_trained >= status.rounds_planned)

        self._wait(idle)

    def extend(self, rounds: int) -> None:
        self._server.control.extend(rounds)

    def forget(
        self,
        targets: Collection[int],
        *,
        mode: str | None = None,
        samples: Mapping[int, Sequence[str]] | None = None,
        **strength: Unpack[Strength],
    ) -> None:
        names = {"kappa": "--kappa", "eta_u": "--eta-u", "epochs": "--unlearn-epochs"}
        flags = ["--mode", mode] if mode else []
        flags += [word for name, value in strength.items() for word in (names[name], str(value))]
        # Without the pause the first request would get a separate unlearning round.
        self._server.control.pause()
        with ExitStack() as stack:
            requests = []
            for shard in sorted(targets):
                more = [*flags]
                if samples and shard in samples:
                    ids = self._directory / f"forget-{shard}.txt"
                    ids.write_text("".join(f"{name}\n" for name in samples[shard]))
                    more += ["--forget", str(ids)]
                command = unlearn_command(self._spec, self._server, self._clients, shard, *more)
                requests.append(stack.enter_context(Process(command, self._log(f"unlearn-{shard}"))))
            self._wait(lambda: len(self._server.control.tickets()) >= len(requests), *requests)
            self._server.control.resume()
            for process in requests:
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

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _wait(self, done: Callable[[], bool], *others: Process) -> None:
        wait_until(done, _SECONDS, self._server, self._fleet, *others, poll=_POLL)
