"""FLARE's FedAvg on the model of `task`. It writes the model after the last round."""

from __future__ import annotations

from typing import Any

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.fedavg import FedAvg
from tests.integrations import task


class SavedFedAvg(FedAvg):  # type: ignore[misc]
    def __init__(self, out: str, num_clients: int, num_rounds: int, aggregator: Any) -> None:
        super().__init__(num_clients=num_clients, num_rounds=num_rounds, aggregator=aggregator)
        self.out = out

    def load_model(self) -> FLModel:
        return FLModel(params=task.initial(), start_round=0)

    def save_model(self, model: FLModel) -> None:
        np.savez(self.out, **model.params)
