"""`puf-client run` refuses unsuitable data before it joins the federation."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.running import make_state, running, tiny_config

from puf_client.options import RunOptions
from puf_client.worker.run import run_worker
from puf_common.errors import UsageError
from puf_common.models.module_tensors import manifest_of, payload_of
from puf_common.models.networks import build

MODULE = """
import torch
from torch.utils.data import TensorDataset
from puf_client import ClientData

def load(ctx):
    data = TensorDataset(torch.zeros(6, 3, 5, 5), torch.zeros(6).long())
    return ClientData(data, ids=[f"s{i}" for i in range(6)])
"""


def test_data_of_the_wrong_shape_does_not_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "five_pixels.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    model = build("digits-cnn", {}, 1)
    manifest = manifest_of(model)
    config = tiny_config(plan={"min_clients": 1}).model_copy(update={"model": "digits-cnn"})
    make_state(tmp_path / "server", config, manifest, payload_of(model, manifest))
    with running(tmp_path / "server") as server:
        options = RunOptions(
            server=f"127.0.0.1:{server.port}", name="anna", state=tmp_path / "state", data="five_pixels:load"
        )
        with pytest.raises(UsageError, match="does not fit the model and the task"):
            run_worker(options)
        assert not server.engine.state.members


def test_unknown_data_is_refused_before_a_connection_is_made(tmp_path: Path) -> None:
    # No server listens here; an attempt to connect would take until the patience ends.
    options = RunOptions(server="127.0.0.1:1", name="anna", state=tmp_path, data="mnist", patience=600)
    with pytest.raises(UsageError, match="no built-in dataset 'mnist'"):
        run_worker(options)
