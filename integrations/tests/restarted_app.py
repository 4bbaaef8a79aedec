"""Two runs of a ServerApp with one PUF directory, with Flower's own messages and apps, as a program.

The grid calls the ClientApp in this process: Flower's engines take a minute to start. Its nodes have public keys, as in the
deployment engine. In the second run they have other ids. Prints, as JSON, the partitions that trained in every round of
both runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from flwr.app import Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity
from tests.integrations import task

from puf_flower.mod import PufMod
from puf_flower.strategy import PufStrategy
from puf_server.core.config import Forgetting

DIRECTORY, ENDS_AFTER = sys.argv[1], int(sys.argv[2])
NODES, ASKS_AFTER, ROUNDS = 4, 2, 8


class LocalGrid(Grid):
    """Nodes with keys that answer at once. `trained` has the partitions of every round with training."""

    def __init__(self, first_id: int) -> None:
        self.partitions = {first_id + number: number for number in range(NODES)}
        self.trained: list[list[int]] = []
        self._app = client_app(self.trained)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.partitions)

    def get_nodes(self) -> Iterable[Any]:
        return [NodeInfo(node_id=node, public_key=b"key of %d" % p) for node, p in self.partitions.items()]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        self.trained.append([])
        return [self._answer(message) for message in messages]

    def _answer(self, message: Message) -> Message:
        partition = self.partitions[message.metadata.dst_node_id]
        asks = {"puf-forget": ASKS_AFTER} if partition == 1 else {}
        config = {"partition-id": partition, **asks}
        try:
            return self._app(message, Context(1, message.metadata.dst_node_id, config, RecordDict(), {}))
        except ValueError as error:
            # The app has no evaluation. Flower's engines answer with an error, too.
            return Message(Error(0, str(error)), reply_to=message)

    def set_run(self, run: Any) -> None: ...
    def run(self) -> Any: ...
    def create_message(self, *arguments: Any, **named: Any) -> Any: ...
    def push_messages(self, messages: Any) -> Any: ...
    def pull_messages(self, message_ids: Any) -> Any: ...


def client_app(trained: list[list[int]]) -> ClientApp:
    app = ClientApp(mods=[PufMod()])

    @app.train()
    def train(msg: Any, context: Any) -> Message:
        partition = int(context.node_config["partition-id"])
        trained[-1].append(partition)
        arrays, samples = task.train(task.numpy(msg.content["arrays"]), partition)
        metrics = MetricRecord({"num-examples": samples})
        return Message(RecordDict({"arrays": task.record(arrays), "metrics": metrics}), reply_to=msg)

    return app


def run(first_id: int, arrays: Any, rounds: int) -> tuple[Any, list[list[int]]]:
    """The model, and which partitions trained, of a ServerApp that starts with this model."""
    policy = Forgetting(strength="fixed", blind_recovery_rounds=3, max_recovery_rounds=3)
    strategy = PufStrategy(FedAvg(fraction_evaluate=0.0), directory=DIRECTORY, policy=policy)
    grid = LocalGrid(first_id)
    result = strategy.start(grid, arrays, num_rounds=rounds)
    return result.arrays, [sorted(names) for names in grid.trained if names]


if __name__ == "__main__":
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    model, first = run(100, task.record(task.initial()), ENDS_AFTER)
    _, second = run(900, model, ROUNDS - ENDS_AFTER)
    print(json.dumps([first, second]))
