"""The code and the commands of the page docs/own-code.md work as written."""

from __future__ import annotations

import re
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.client.routines.points import RUN, TASK, network, payload, points, settings
from tests.grpc.test_client import Clinic
from tests.running import make_state, running, tiny_config

from puf_client.cli.main import main as puf_client
from puf_client.routines.registry import RoutineInputs, routines_with, run_routine
from puf_common.config.exit_codes import Exit
from puf_common.models.module_tensors import manifest_of, payload_of
from puf_common.models.networks import build
from puf_common.tensors.model_file import read_payload
from puf_server.cli.main import main as puf_server
from puf_server.storage.state_store import Store

PAGE = (Path(__file__).parents[2] / "docs" / "own-code.md").read_text()
[ROUTINE] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
[COMMAND] = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader's directory, with the routine of the page in my_task.py."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_task", raising=False)
    (tmp_path / "my_task.py").write_text(ROUTINE)
    return tmp_path


def test_the_routine_of_the_page_gives_the_bits_of_ordinary_training(here: Path) -> None:
    results = []
    for name in ("train", "my_task:soften"):
        model = network()
        inputs = RoutineInputs(
            model=model, samples=points(), task=TASK, settings=settings(), options={}, outputs=(), forget=None, second=None,
            fresh=network, plain=points(),
        )  # fmt: skip
        result = run_routine(name, inputs, RUN, routines_with(["my_task:soften"]))
        results.append((result, payload(model)))
    assert results[0] == results[1]
    assert results[0][1] != payload(network())


def test_the_command_of_the_page_takes_part_in_a_federation(here: Path) -> None:
    model = build("digits-cnn", {}, 1)
    plan = {"rounds": 1, "min_clients": 1, "heartbeat_seconds": 0.2}
    config = tiny_config(recipe={"batch_size": 100}, plan=plan).model_copy(update={"model": "digits-cnn"})
    make_state(here / "server", config, manifest_of(model), payload_of(model, manifest_of(model)))
    program, *words = shlex.split(COMMAND)
    assert program == "puf-client"
    with running(here / "server") as server, ThreadPoolExecutor(1) as pool:
        clinic = Clinic(server, here / "state")
        ended = pool.submit(puf_client, [*words, "--server", clinic.target, "--state", str(clinic.state)])
        clinic.wait_for(lambda: server.engine.state.trained == 1 or ended.done())
        clinic.end()
        assert ended.result(60) == Exit.OK
    assert server.engine.state.trained == 1


def test_the_initial_model_comes_from_the_users_code(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands between the lines of the page."""
    (here / "my_task.py").unlink()
    assert puf_client(["init"]) == Exit.OK
    [model, init] = [re.findall(rf"`({start}[^`]*)`", PAGE)[-1] for start in ("puf-client model", "puf-server init")]
    assert puf_client(shlex.split(model)[1:]) == Exit.OK
    words = [word for word in shlex.split(init)[1:] if word != "..."]
    assert puf_server([*words, "--state", "fed", "--task", "my_task:Task"]) == Exit.OK
    store = Store.open(here / "fed")
    try:
        assert store.config.model == "my_task:build"
        assert store.manifest.nbytes("model") == len(read_payload(here / "w0.safetensors"))
    finally:
        store.close()
