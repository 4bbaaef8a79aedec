"""examples/lora with transformers and peft, in an environment of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.e2e.pasting import Terminal, blocks

from puf_common.tensors.model_file import read_manifest
from puf_lab.reporting.results import read

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "lora"
PROGRAMS = ROOT / ".venv-hf" / "bin"
SECONDS = 1200.0
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}

pytestmark = pytest.mark.skipif(
    not (PROGRAMS / "python").exists(), reason="needs transformers and peft: `make .venv-hf/.ready` installs them"
)


def ran(*command: str, cwd: Path) -> str:
    env = os.environ | ENVIRONMENT | {"PYTHONPATH": str(EXAMPLE)}
    done = subprocess.run(
        [str(PROGRAMS / command[0]), *command[1:]], cwd=cwd, env=env, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


# Makes a checkpoint with a tokenizer as a user would have it: the directory is the last word of the command.
CHECKPOINT = """
import sys, torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
alphabet = pre_tokenizers.ByteLevel.alphabet()
tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(sorted(alphabet))}, []))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(sys.argv[1])
config = LlamaConfig(vocab_size=len(alphabet), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(sys.argv[1])
"""


def test_the_example_forgets_a_clients_text(tmp_path: Path) -> None:
    ran("puf-lab", "run", str(EXAMPLE / "lora.toml"), "--metric", "lora_text:memory", cwd=tmp_path)
    (results,) = read([tmp_path / "runs" / "lora"])
    found = {run.method: run.values for run in results.runs}
    before, retrained, floor = (found[method]["trained"] for method in ("original", "retrain", "floor"))
    after = found["puf-auto"]["recovered"]
    # 75 % before, 0 after, 0 of the retrained models where it was measured.
    assert before["extracted"] >= 50
    assert retrained["extracted"] == floor["extracted"] == 0
    assert after["extracted"] <= 25
    # 0.34 before, 2.3 after, 4.5 and 4.6 retrained: less is known than before, and more than by a retrained model.
    assert before["loss_forget"] + 1 < after["loss_forget"]


def test_the_commands_of_the_page_work_and_a_service_forgets_a_clients_text(tmp_path: Path) -> None:
    """Every command of the page but that of the lab, which the test above runs."""
    first, live, floor = blocks((ROOT / "docs" / "lora.md").read_text())
    code = shutil.copytree(EXAMPLE, tmp_path / "examples" / "lora")
    with ExitStack() as stack:
        terminal = Terminal(tmp_path, stack, programs=PROGRAMS, seconds=SECONDS)
        terminal.env |= ENVIRONMENT
        # `check` asks a server that is named, and the first block has none.
        named = terminal.env.pop("PUF_SERVER")
        shown = [_pasted(terminal, "".join(line for line in first.splitlines(True) if not line.startswith("puf-lab")))]
        terminal.directory, terminal.env["PUF_SERVER"] = code, named
        shown += [_pasted(terminal, live), _pasted(terminal, floor)]
    assert "frozen parameters stay here" in shown[0]
    assert "request of client-0 was applied" in shown[1]
    found = _measured(shown[2])
    before, after, retrained = found["before"], found["after"], (found["without-1"], found["without-2"])
    # The third column is the number of extracted canaries.
    assert before[2] > after[2] == retrained[0][2] == retrained[1][2] == 0
    # Losses on the text and on the canaries: more than before by more than the noise floor.
    for column in (0, 1):
        assert found["noise floor"][column] == pytest.approx(
            abs(retrained[0][column] - retrained[1][column]), abs=0.011
        )
        assert after[column] - before[column] > 2 * found["noise floor"][column]
    only = read_manifest(code / "after.safetensors")[0]
    assert {spec.name for spec in only.tensors}
    assert all("lora_B" in spec.name for spec in only.tensors)


def _pasted(terminal: Terminal, block: str) -> str:
    done = terminal.paste_block(block)
    assert done.code == 0, f"{block}\n{done.out}{done.err}"
    return done.out


def _measured(text: str) -> dict[str, list[float]]:
    """The figures of measure.py by the name of their row."""
    rows = re.findall(r"^(\S[\w -]+?) {2,}(\S.*)$", text.partition("text of no client")[2], re.MULTILINE)
    return {name: [float(number) for number in re.sub(r" of \d+", "", cells).split()] for name, cells in rows}


def test_the_same_code_with_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran("python", "-c", CHECKPOINT, str(tmp_path / "checkpoint"), cwd=tmp_path)
    monkeypatch.setenv("LORA_CHECKPOINT", str(tmp_path / "checkpoint"))
    code = ["--data", "lora_text:load", "--model", "lora_text:build", "--task", "lora_text:NextToken"]
    shown = ran("puf-client", "check", *code, "--shard", "0/3", cwd=tmp_path)
    assert "frozen parameters stay here" in shown
    assert "everything is in order" in shown
    made = ran("puf-server", "init", "--state", "fed", *code[2:], cwd=tmp_path)
    assert "base model " in made


def test_the_page_shows_lines_of_the_example() -> None:
    page, example = (ROOT / "docs" / "lora.md").read_text(), (EXAMPLE / "lora_text.py").read_text()
    lines = page.split("```python\n")[1].split("```")[0].splitlines()
    assert len(lines) == 3
    assert {line.strip() for line in lines} <= {line.strip() for line in example.splitlines()}
