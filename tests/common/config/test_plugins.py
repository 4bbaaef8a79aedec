"""The user's code is loaded and called; its errors are one line."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

import pytest

from puf_common.config import plugins
from puf_common.errors import Conflict, UsageError

_NUMBERS = itertools.count()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Writes a module with a unique name into the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])

    def writer(text: str) -> str:
        name = f"plugin_{next(_NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return writer


def _write(write: object, text: str) -> str:
    assert callable(write)
    return str(write(text))


def test_loads_functions_and_classes_from_the_current_directory(write: object) -> None:
    name = _write(write, "__version__ = '1.2'\ndef double(x): return 2 * x\nclass Thing: pass\n")
    assert plugins.load(f"{name}:double")(4) == 8
    thing = plugins.load(f"{name}:Thing")
    assert plugins.call(thing).__class__ is thing
    assert plugins.plugin_version(thing) == "1.2"
    assert plugins.plugin_version(sys.modules[name]) == "1.2"


def test_a_module_without_a_version_has_none(write: object) -> None:
    assert plugins.plugin_version(plugins.load(f"{_write(write, 'def f(): ...')}:f")) == ""
    assert plugins.plugin_version(3) == ""


@pytest.mark.parametrize(
    "spec", ["", "module", "module:", ":name", "a b:c", "module:a.b", "module:a:b", "../x:y", "a..b:c"]
)
def test_a_spec_of_another_form_is_refused(spec: str) -> None:
    with pytest.raises(UsageError, match=re.escape("must be package.module:name")):
        plugins.load(spec)


@pytest.mark.parametrize("spec", ["nowhere_at_all:f", "nowhere_at_all.inside:f", "os.nowhere:f"])
def test_a_missing_module_is_named(spec: str, write: object) -> None:
    with pytest.raises(UsageError, match=f"there is no module {spec.partition(':')[0]}: looked in"):
        plugins.load(spec)


def test_a_missing_name_is_named(write: object) -> None:
    name = _write(write, "import json\ndef one(): ...\nclass Two: ...\nthree = 3\n")
    with pytest.raises(UsageError, match=r"\.py has no loda; it defines one, Two$"):
        plugins.load(f"{name}:loda")
    with pytest.raises(UsageError, match=f"{name}:three is a int; it must be a function or a class"):
        plugins.load(f"{name}:three")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1\ny = 1 / 0\n", r"line 2: ZeroDivisionError: division by zero"),
        ("def f(:\n", r"line 1: SyntaxError: "),
        (
            "import math\n\nimport missing_dependency\n",
            r"line 3: ModuleNotFoundError: No module named 'missing_dependency'",
        ),
        ("from json import nothing\n", r"line 1: ImportError: cannot import name 'nothing'"),
        ("import json\njson.loads('{')\n", r"line 2: JSONDecodeError: "),
        ("raise ValueError('two\\nlines')\n", r"line 1: ValueError: two lines"),
    ],
)
def test_a_failure_in_the_users_code_is_one_line(text: str, says: str, write: object) -> None:
    name = _write(write, text)
    with pytest.raises(UsageError, match=says) as caught:
        plugins.load(f"{name}:f")
    assert f"{name}.py, line" in caught.value.message
    assert "\n" not in caught.value.message


def test_a_failed_call_names_the_place_and_a_puf_error_passes(write: object) -> None:
    name = _write(
        write,
        "import json\nfrom puf_common.errors import Conflict\n"
        "def inner(text):\n    return json.loads(text)\n"
        "def outer(text):\n    return inner(text)\n"
        "def ours():\n    raise Conflict('ours')\n",
    )
    with pytest.raises(UsageError, match=rf"outer failed: .*{name}\.py, line 4: JSONDecodeError"):
        plugins.call(plugins.load(f"{name}:outer"), "{")
    with pytest.raises(Conflict, match="ours"):
        plugins.call(plugins.load(f"{name}:ours"))
