"""Prints which of Flower's strategies PUF refuses, and why, as JSON. Runs in Flower's environment."""

from __future__ import annotations

import json
from typing import Any

from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAvg, FedAvgM

from puf_common.errors import UsageError
from puf_flower.linear import require_linear


class Own(FedAvg):
    """A strategy of a user's that averages as FedAvg does."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        return super().aggregate_train(server_round, list(replies))


class Largest(FedAvg):
    """A strategy of a user's that is not linear: it takes the first reply."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        return super().aggregate_train(server_round, list(replies)[:1])


def refusal(strategy: Any) -> str:
    try:
        require_linear(strategy)
    except UsageError as error:
        return error.message
    return ""


def private() -> Any:
    return strategies.DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.1, 1.0, 2)


MADE = {
    "FedAvg": FedAvg(), "FedProx": strategies.FedProx(), "FedAvgM": FedAvgM(), "Own": Own(), "Largest": Largest(),
    "momentum": FedAvgM(server_momentum=0.9), "FedMedian": strategies.FedMedian(), "Krum": strategies.Krum(),
    "FedTrimmedAvg": strategies.FedTrimmedAvg(), "FedAdam": strategies.FedAdam(), "Bulyan": strategies.Bulyan(),
    "private": private(), "no strategy": object(),
}  # fmt: skip

if __name__ == "__main__":
    print(json.dumps({name: refusal(strategy) for name, strategy in MADE.items()}))
