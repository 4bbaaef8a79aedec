"""Log lines as JSON and for a terminal."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from puf_common.logging import LogSettings, configure, get_logger


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def untouched_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def entries(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_without_a_terminal() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    get_logger("puf_server.engine.engine", federation="demo").info("round opened", round=3)
    (entry,) = entries(stream)
    assert str(entry.pop("time")).endswith("Z")
    assert entry == {
        "level": "info", "event": "round opened", "logger": "puf_server.engine.engine", "federation": "demo", "round": 3,
    }  # fmt: skip
    assert list(entries(stream)[0])[:3] == ["time", "level", "event"]


def test_ids_stay_bound() -> None:
    stream = io.StringIO()
    configure(stream=stream, log_format="json")
    log = get_logger("puf", round=1).bind(client="a")
    log.info("one")
    log.bind(ticket="t").warning("two")
    assert [(e["round"], e["client"], e.get("ticket")) for e in entries(stream)] == [(1, "a", None), (1, "a", "t")]


def test_console_on_a_terminal() -> None:
    stream = Terminal()
    configure(stream=stream)
    get_logger("puf").info("round opened", round=3)
    assert "round opened" in stream.getvalue()
    assert "\x1b[" in stream.getvalue()
    plain = io.StringIO()
    configure(stream=plain, log_format="console")
    get_logger("puf").info("round opened", round=3)
    assert "round=3" in plain.getvalue()
    assert "\x1b[" not in plain.getvalue()


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    configure(stream=stream)
    get_logger("puf").info("x")
    assert "\x1b[" not in stream.getvalue()


def test_level_and_reconfiguration() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure(stream=first, level="warning")
    log = get_logger("puf")
    log.info("hidden")
    configure(stream=second, level="debug")
    log.debug("shown")
    assert first.getvalue() == ""
    assert [e["event"] for e in entries(second)] == ["shown"]


def test_other_libraries_log_warnings_only() -> None:
    stream = io.StringIO()
    configure(stream=stream, level="debug")
    logging.getLogger("grpc").info("chatter")
    logging.getLogger("grpc").warning("careful %d", 3)
    assert [(e["event"], e["logger"]) for e in entries(stream)] == [("careful 3", "grpc")]


def test_values_without_a_json_form_are_text() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    get_logger("puf").info(
        "x", loss=float("nan"), all=[float("inf")], digest=b"\x01\x02", kind=ValueError, bad="\ud800"
    )
    (entry,) = entries(stream)
    assert (entry["loss"], entry["all"], entry["digest"]) == ("nan", ["inf"], "0102")


def test_a_name_cannot_forge_lines() -> None:
    stream = io.StringIO()
    configure(stream=stream, log_format="console")
    get_logger("puf").info("joined", client="a\nb\x1b[2J")
    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_tracebacks_have_no_local_variables(log_format: str) -> None:
    stream = io.StringIO()
    configure(stream=stream, log_format=LogSettings.model_validate({"log_format": log_format}).log_format)
    token = "hunter" + "2"
    try:
        raise ValueError(len(token))
    except ValueError:
        get_logger("puf").exception("failed")
    assert "ValueError: 7" in stream.getvalue()
    assert token not in stream.getvalue()


def test_goes_to_stderr_and_importing_is_cheap() -> None:
    program = (
        "import sys, puf_common.logging as l; assert 'structlog' not in sys.modules; "
        "l.configure(); l.get_logger('puf').info('hello')"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == ""
    assert json.loads(run.stderr)["event"] == "hello"


def test_without_configuration_nothing_reaches_stdout() -> None:
    program = (
        "from puf_common.logging import get_logger; get_logger('puf').info('quiet'); get_logger('puf').warning('w')"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == ""
    assert "quiet" not in run.stderr


def test_ids_of_the_process_are_on_every_line() -> None:
    stream = io.StringIO()
    configure(log_format="json", stream=stream, client="clinic-7")
    get_logger("puf_client.test").info("hello", round=3)
    get_logger("puf_client.test").info("about another", client="clinic-8")
    logging.getLogger("library").warning("careful")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["client"] for line in lines] == ["clinic-7", "clinic-8", "clinic-7"]
    assert lines[0]["round"] == 3
