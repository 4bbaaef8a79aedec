"""A Flower app in the simulation engine, as a program: SETTINGS is a JSON object. Runs in Flower's environment."""

from __future__ import annotations

import json
import sys
from typing import Any

from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from tests.integrations import task

from puf_flower.mod import PufMod
from puf_flower.strategy import Forget, PufStrategy
from puf_server.core.config import Forgetting

SETTINGS = json.loads(sys.argv[1])


def partition(context: Any) -> int:
    return int(context.node_config["partition-id"])


def measure(arrays: Any, context: Any, part: str) -> Any:
    return task.measure(arrays, partition(context), part)


def asks(context: Any, server_round: int) -> bool:
    return partition(context) in SETTINGS["targets"] and server_round >= SETTINGS["after"]


client = ClientApp(mods=[PufMod(measure if SETTINGS["measures"] else None, asks)])
server = ServerApp()


@client.train()
def train(msg: Any, context: Any) -> Message:
    arrays, samples = task.train(task.numpy(msg.content["arrays"]), partition(context))
    metrics = MetricRecord({"num-examples": samples})
    return Message(RecordDict({"arrays": task.record(arrays), "metrics": metrics}), reply_to=msg)


@server.main()
def main(grid: Any, context: Any) -> None:
    inner = FedAvg(fraction_evaluate=0.0)
    forget = [Forget(node=n) for n in SETTINGS.get("forget", ())]
    policy = Forgetting(**SETTINGS["policy"])
    strategy = PufStrategy(inner, directory=SETTINGS["directory"], policy=policy, forget=forget)
    result = strategy.start(grid, task.record(task.initial()), num_rounds=SETTINGS["rounds"])
    task.save(result.arrays, SETTINGS["out"])


if __name__ == "__main__":
    resources = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 1, "log_to_driver": False}}
    run_simulation(server, client, num_supernodes=SETTINGS["nodes"], backend_config=resources)
