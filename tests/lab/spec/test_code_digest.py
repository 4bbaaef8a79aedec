"""The digest of the code in a run's name: what counts as a change, and which runs it concerns."""

from __future__ import annotations

import ast
import subprocess
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from puf_lab.evaluation.metrics import stamps
from puf_lab.reporting import provenance
from puf_lab.spec.code_digest import code_digest, digest_of, sources

# What modules of the digest import, and what does not decide a result: messages for people, files, network, processes,
# receipts.
NEUTRAL = (
    "puf_common/audit_chain.py", "puf_common/clock.py", "puf_common/config", "puf_common/dates.py",
    "puf_common/errors.py", "puf_common/files", "puf_common/logging.py", "puf_common/names.py", "puf_common/network",
    "puf_common/receipts", "puf_common/tracing", "puf_common/v1", "puf_common/version.py", "puf_client/machine.py",
    "puf_client/options.py", "puf_client/state", "puf_client/terminal.py", "puf_client/transport",
    "puf_server/admission", "puf_server/cli", "puf_server/failpoints.py", "puf_server/rpc", "puf_server/storage",
    "puf_server/tracking",
    # What these decide is stated in the name of the run itself.
    "puf_lab/experiments/cache.py", "puf_lab/experiments/jobs.py", "puf_lab/experiments/measuring.py",
    "puf_lab/reporting", "puf_lab/spec",
)  # fmt: skip
REPOSITORY = Path(__file__).parents[3]
ROOTS = {"puf_common": "common", "puf_server": "server", "puf_client": "client", "puf_lab": "lab"}

METHOD = '''"""A module."""

def scale(kappa: float) -> float:
    """Negates."""
    return -kappa
'''


def test_only_code_counts() -> None:
    documented = METHOD.replace("Negates.", "Negates and scales.").replace("return", "# the sign\n    return")
    assert digest_of({"a.py": METHOD}) == digest_of({"a.py": documented})
    assert digest_of({"a.py": METHOD}) != digest_of({"a.py": METHOD.replace("-kappa", "kappa")})
    assert digest_of({"a.py": METHOD}) != digest_of({"b.py": METHOD})


def test_an_edited_method_concerns_runs_that_forget_and_no_others() -> None:
    training, forgetting = sources("training"), sources("forgetting")
    assert training.keys() < forgetting.keys()
    only = forgetting.keys() - training.keys()
    assert {"puf_server/core/methods/puf.py", "puf_server/core/unlearning/recovery.py"} <= only
    for name in (
        "client/routines/train.py",
        "client/data/datasets.py",
        "server/aggregation/fold.py",
        "server/core/rounds.py",
    ):
        assert f"puf_{name}" in training
    for name in ("puf_lab/experiments/perform.py", "puf_lab/experiments/stages.py", "puf_common/seeds.py"):
        assert name in training
    assert digest_of(training) == code_digest("training")
    name = "puf_server/core/methods/puf.py"
    edited = {**forgetting, name: forgetting[name] + "\nSIGN = -1\n"}
    assert digest_of(edited) != code_digest("forgetting")


def test_every_module_that_decides_a_result_is_in_the_digest() -> None:
    """Each import of the digest's modules is in the digest, or named above."""
    covered = sources("forgetting")
    missing = {name for text in covered.values() for name in _imported(text) if name not in covered}
    assert {name for name in missing if not name.startswith(NEUTRAL)} == set()
    measuring = sources("measuring")
    used = {name for text in measuring.values() for name in _imported(text) if name not in measuring}
    # The other modules of a measurement are those of the run, whose name the stamp contains.
    assert {name for name in used if not name.startswith(NEUTRAL) and name not in covered} == set()


def _imported(text: str) -> set[str]:
    """The project's modules that a module imports, as the digest names them."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ROOTS:
            for module in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                name = module.replace(".", "/") + ".py"
                if (REPOSITORY / ROOTS[module.split(".")[0]] / name).exists():
                    found.add(name)
    return found


def test_edited_metrics_concern_no_runs() -> None:
    measuring = sources("measuring")
    for name in ("puf_lab/evaluation/attacks.py", "puf_lab/evaluation/metrics.py", "puf_lab/experiments/measuring.py"):
        assert name in measuring
        assert name not in sources("forgetting")
    before = stamps(["test", "rmia"])
    assert before == [f"test {code_digest('measuring')}", f"rmia {code_digest('measuring')}"]


def test_the_commit_is_that_of_the_repository_of_the_code(tmp_path: Path) -> None:
    """An installed package may lie in a repository of the user's, whose commit says nothing about it."""

    def git(*words: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e"]
        command = ["git", "-C", str(tmp_path), *identity, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    copied = tmp_path / "provenance.py"
    copied.write_bytes(Path(str(provenance.__file__)).read_bytes())
    spec = spec_from_file_location("copied_provenance", copied)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    git("init", "-q")
    (tmp_path / "users.txt").write_text("x")
    git("add", "users.txt")
    git("commit", "-qm", "The user's")
    assert module.commit() == ""
    git("add", "provenance.py")
    git("commit", "-qm", "Ours")
    assert module.commit() == git("rev-parse", "HEAD")
    copied.write_text(copied.read_text() + "#\n")
    assert module.commit() == git("rev-parse", "HEAD") + "+changes"
