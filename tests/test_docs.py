"""The documentation builds without warnings and without a network, and the glossary covers the contract and the commands."""

from __future__ import annotations

import contextlib
import io
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import puf_client
import puf_lab
from puf_client.cli.main import main as client
from puf_common.v1 import federation_pb2, operator_pb2, tensors_pb2, tickets_pb2
from puf_lab.cli.main import main as lab
from puf_server.cli.main import main as server

ROOT = Path(__file__).parent.parent
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
CONTRACT = (federation_pb2, operator_pb2, tensors_pb2, tickets_pb2)


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-n",
        "-W",
        "--keep-going",
        "-c",
        "docs",
        "-d",
        str(tmp_path / "cache"),
    ]
    # A proxy that does not exist: the build fails if it asks the network.
    offline = os.environ | dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    done = subprocess.run(
        [*command, "-b", "html", ".", str(tmp_path / "site")], cwd=ROOT, env=offline, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 30
    loaded = [
        f"{page.name}: {found}"
        for page in pages
        for found in re.findall(r"<(?:script|img|link|iframe)[^>]+(?:src|href)=\"https?:[^\"]*", page.read_text())
    ]
    assert not loaded


# Which test runs the blocks of a page, by language, and how many. `make compose` and `make systemd` run the trials in deploy. The
# rest is not run by a test: it installs an extra, which `make integrations` does, or takes data and hours.
EXTRA, HOURS = "extra", "hours"
LORA, PAGES, COMMANDS = "integrations/tests/test_lora.py", "tests/e2e/test_pages.py", "tests/grpc/test_page_commands.py"
LAB, DATABASE, TRIAL = "tests/lab/test_lab_page.py", "tests/e2e/test_database_pages.py", "deploy/try_pages.py"
OWN_CODE, OWN_METHOD = "tests/grpc/test_own_code_page.py", "tests/lab/federations/test_own_method.py"
RUN_BY: dict[str, dict[str, dict[str, int]]] = {
    "../README.md": {"sh": {"tests/e2e/test_readme.py": 4}},
    "../examples/node-client/README.md": {"sh": {"tests/e2e/test_node_client.py": 5}},
    "../examples/segmentation/README.md": {"sh": {"tests/e2e/test_example.py": 7}},
    "dashboard.md": {"sh": {PAGES: 3, TRIAL: 1}},
    "deploy-hosts.md": {"sh": {PAGES: 3, TRIAL: 1, "deploy/try_systemd.py": 4}},
    "deploy.md": {"sh": {TRIAL: 5}, "dockerfile": {TRIAL: 1}},
    "files.md": {"sh": {DATABASE: 1}, "json": {DATABASE: 1}},
    "flare.md": {"sh": {EXTRA: 1}, "python": {"integrations/tests/test_flare.py": 1}},
    "flower.md": {"sh": {EXTRA: 1}, "python": {"integrations/tests/test_flower.py": 2}},
    "forget.md": {"sh": {COMMANDS: 3}},
    "install.md": {"sh": {"tests/e2e/test_install_page.py": 3}},
    "lab.md": {"sh": {LAB: 1, OWN_METHOD: 1, HOURS: 3}, "python": {LAB: 2, OWN_METHOD: 1}, "toml": {LAB: 3}},
    "lora.md": {"sh": {LORA: 3}, "python": {LORA: 1}},
    "methods.md": {"sh": {COMMANDS: 3}, "python": {COMMANDS: 1}},
    "monitoring.md": {"sh": {TRIAL: 2}},
    "operate.md": {"sh": {COMMANDS: 1}},
    "own-code.md": {"sh": {OWN_CODE: 1}, "python": {OWN_CODE: 1}},
    "postgres.md": {"sh": {DATABASE: 2}, "sql": {DATABASE: 1}},
    "python.md": {"python": {"tests/grpc/test_api.py": 2}},
    "receipt.md": {"sh": {COMMANDS: 1}},
    "security.md": {"sh": {PAGES: 8}},
    "state.md": {"sh": {COMMANDS: 1, PAGES: 1}},
    "tracking.md": {"sh": {"tests/e2e/test_tracking_page.py": 1}},
}
# Languages of blocks that show an output, a value or a list of pages.
SHOWN = {"text", "json"}


def blocks_of(page: str) -> list[tuple[str, str]]:
    text = (ROOT / "docs" / page).read_text()
    return re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_every_page_with_blocks_states_what_runs_them() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    pages |= {f"../{path.relative_to(ROOT)}" for path in [*ROOT.glob("*.md"), *ROOT.glob("examples/*/*.md")]}
    assert {page for page in pages if {language for language, _ in blocks_of(page)} - SHOWN} == set(RUN_BY)


@pytest.mark.parametrize("page", RUN_BY)
def test_every_block_of_a_page_is_run(page: str) -> None:
    blocks = blocks_of(page)
    counted = {language: sum(found == language for found, _ in blocks) for language, _ in blocks}
    assert counted == {language: sum(by.values()) for language, by in RUN_BY[page].items()}
    for language, by in RUN_BY[page].items():
        for test in by:
            if test == EXTRA:
                [extra] = re.findall(r'^pip install "puf-fl\[(\w+)\]" ', dict(blocks)[language], re.MULTILINE)
                assert f"--extra {extra} " in (ROOT / "Makefile").read_text()
            elif test != HOURS:
                assert Path(page).name in (ROOT / test).read_text()


@pytest.mark.parametrize(("package", "page"), [(puf_client, "client.md"), (puf_lab, "lab.md")])
def test_the_reference_has_every_public_name(package: ModuleType, page: str) -> None:
    text = (ROOT / "docs" / "api" / page).read_text()
    listed = re.findall(r"auto(?:class|function|module):: ([\w.]+)", text)
    for name in set(package.__all__) - {"__version__"}:
        public = getattr(package, name)
        assert {f"{public.__module__}.{name}", public.__module__} & set(listed), name


def test_the_glossary_names_every_call_of_the_contract() -> None:
    calls = [
        method.name for file in CONTRACT for s in file.DESCRIPTOR.services_by_name.values() for method in s.methods
    ]
    assert len(calls) > 30
    assert not [call for call in calls if f"`{call}`" not in GLOSSARY]


def test_the_glossary_names_every_value_of_the_contracts_states() -> None:
    for enum in ("Phase", "TicketState", "Scope", "Mode", "Flip", "Part", "Role"):
        [kind] = [f.DESCRIPTOR.enum_types_by_name[enum] for f in CONTRACT if enum in f.DESCRIPTOR.enum_types_by_name]
        prefix = f"{re.sub(r'(?<=[a-z])(?=[A-Z])', '_', enum).upper()}_"
        words = [value.name.removeprefix(prefix).lower() for value in kind.values if value.number]
        assert words
        assert not [word for word in words if not re.search(rf"\b{word}", GLOSSARY, re.IGNORECASE)], enum


PROGRAMS = {"puf-server": server, "puf-client": client, "puf-lab": lab}


def help_of(program: str, *words: str) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        PROGRAMS[program]([*words])
    return shown.getvalue()


def actions(shown: str) -> list[str]:
    """Commands of a program, or actions of a command, as its help lists them."""
    listed = re.search(r"^  (?:COMMAND|ACTION)\n(.*)", shown, re.MULTILINE | re.DOTALL)
    return re.findall(r"^    ([a-z]+)(?: |$)", listed[1], re.MULTILINE) if listed else []


def flags(program: str, *words: str) -> set[str]:
    """All flags of a command and of its actions."""
    shown = help_of(program, *words, "--help")
    if "--help-all" in shown:
        shown = help_of(program, *words, "--help-all")
    inner = [flags(program, *words, action) for action in actions(shown)]
    return set(re.findall(r"--[a-z][a-z-]+", shown)).union(*inner)


@pytest.mark.parametrize("program", ["puf-server", "puf-client"])
def test_every_command_is_on_a_page(program: str) -> None:
    pages = "\n".join(path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    commands = actions(help_of(program, "--help"))
    assert len(commands) > 10
    assert not [name for name in commands if not re.search(rf"{program} [^\n]*\b{name}\b", pages)]


def test_every_flag_on_a_page_exists() -> None:
    known = set[str]().union(*map(flags, PROGRAMS))
    assert len(known) > 100
    others = re.compile(
        r"docker|npm ci|kubectl|systemctl|systemd-run|useradd|runuser|venv|--scale|flower-super|ssh-keygen|tests\.sim|measure\.py"
    )
    unknown = [
        f"{path.name}: {flag}"
        for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*/README.md")]
        for line in path.read_text().splitlines()
        if not others.search(line)
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z](?![\w*-])", line)
        if flag not in known
    ]
    assert not unknown


def test_every_module_on_a_page_exists() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").glob("*.md")]
    spans = {(path.name, span) for path in pages for span in re.findall(r"`([^`\n]+)`", path.read_text())}
    named = {
        (page, module.replace("/", ".").removesuffix(".py"))
        for page, span in spans
        for module in re.findall(r"\bpuf_(?:common|server|client|lab)[./][\w./]*\w", span)
    }
    assert len(named) > 20
    for page, module in named:
        try:
            pkgutil.resolve_name(module)
        except (ImportError, AttributeError):
            raise AssertionError(f"{page} names {module}") from None
    for page, span in spans:
        for file in re.findall(r"^(?:tests|deploy|server|client|common|lab)/[\w./-]+", span):
            assert (ROOT / file).exists(), f"{page} names {file}"
