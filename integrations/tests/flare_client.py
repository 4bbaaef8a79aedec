"""A site of the FLARE job: trains on its part of the data and sends the difference."""

from __future__ import annotations

import sys

import nvflare.client as flare
from nvflare.apis.dxo import MetaKey
from nvflare.app_common.abstract.fl_model import ParamsType
from tests.integrations import task

flare.init()
while flare.is_running():
    model = flare.receive()
    trained, samples = task.train(model.params, int(sys.argv[1]))
    difference = {name: value - model.params[name] for name, value in trained.items()}
    meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: samples}
    flare.send(
        flare.FLModel(params=difference, params_type=ParamsType.DIFF, meta=meta, current_round=model.current_round)
    )
