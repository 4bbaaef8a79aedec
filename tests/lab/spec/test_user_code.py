"""The digest of the user's code in a run's name, and runs that meet other code than that which named them."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from puf_common.errors import UsageError
from puf_lab.experiments.jobs import Job, jobs_of
from puf_lab.spec.experiment import ExperimentSpec
from puf_lab.spec.user_code import digest

METHOD = """
from package.rates import RATE
from puf_server.core.methods.weight_negation import NoT as NoT

class Gentle(NoT):
    name, summary = "gentle", "NoT with a routine of its own"
    routines = ("steps:gently",)
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("gentle", "steps", "package", "package.rates", "package.deep"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "rates.py").write_text("from . import deep\nRATE = 0.1\n")
    (tmp_path / "package" / "deep.py").write_text("import json, numpy\nDEPTH = 3\n")
    (tmp_path / "gentle.py").write_text(METHOD)
    (tmp_path / "steps.py").write_text("def gently(given, context):\n    import package.deep\n")
    return tmp_path


def edited(path: Path) -> None:
    path.write_text(path.read_text() + "# edited\n")


@pytest.mark.parametrize("edit", ["gentle.py", "package/__init__.py", "package/rates.py", "package/deep.py"])
def test_a_change_of_the_file_or_of_what_it_imports_changes_the_digest(code: Path, edit: str) -> None:
    """Imports by name, relative ones, and those of imported files count."""
    before = digest("gentle:Gentle")
    assert digest("gentle:Gentle") == before
    edited(code / edit)
    assert digest("gentle:Gentle") != before


def test_other_files_and_libraries_do_not_count(code: Path) -> None:
    before = digest("gentle:Gentle")
    edited(code / "steps.py")
    assert digest("gentle:Gentle") == before
    assert digest("not") == ""
    # An import inside of a function counts as well.
    before = digest("steps:gently")
    edited(code / "package" / "deep.py")
    assert digest("steps:gently") != before


def test_a_function_that_a_file_imports_belongs_to_that_file(code: Path) -> None:
    (code / "mine.py").write_text("from steps import gently\nLR = 1\n")
    before = digest("mine:gently")
    edited(code / "mine.py")
    assert digest("mine:gently") != before


def last_job(experiment: ExperimentSpec, method: str) -> Job:
    *_, job = jobs_of(experiment.narrowed(targets=[(0,)], methods=[method]))
    return job


@pytest.mark.parametrize("edit", ["gentle.py", "steps.py", "package/deep.py"])
def test_an_edited_method_or_routine_runs_again_and_other_runs_do_not(
    code: Path, tiny: ExperimentSpec, edit: str
) -> None:
    before = last_job(tiny, "gentle:Gentle")
    names = [before.key, before.retrain.key, before.original.key]
    edited(code / edit)
    after = last_job(tiny, "gentle:Gentle")
    assert after.key != names[0]
    assert [after.retrain.key, after.original.key] == names[1:]


def test_a_process_with_other_code_refuses_a_job(
    code: Path, tiny: ExperimentSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of a job travels with it. A process that executes other code would store its result under that name."""
    job = last_job(tiny, "gentle:Gentle")
    assert job.key
    pickle.loads(pickle.dumps(job)).check_code()
    edited(code / "steps.py")
    with pytest.raises(UsageError, match="has other code than the one that started the experiment"):
        pickle.loads(pickle.dumps(job)).check_code()
    again = last_job(tiny, "gentle:Gentle")
    assert again.key
    monkeypatch.setattr("puf_lab.experiments.jobs.code_digest", lambda part: "of another version")
    with pytest.raises(UsageError, match="has other code"):
        pickle.loads(pickle.dumps(again)).check_code()
