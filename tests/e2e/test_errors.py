"""Every error is one line that says what to do, with an exit code for scripts and without a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.federation import SETTING, Federation, Finished, command, environment, opened

import puf_client.cli.main
import puf_server.cli.main
from puf_common.config.exit_codes import Exit
from puf_lab.spec.command_line import data_flags

pytestmark = pytest.mark.e2e

HERE = Path(__file__).parent
NO_SERVER = "127.0.0.1:1"


@pytest.fixture(scope="module")
def served(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server that no client has joined since its start."""
    with opened(tmp_path_factory.mktemp("served"), of=trained) as federation:
        yield federation


Refused = Callable[..., None]


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command that must fail: as a process, or `here` in this process, which has already imported torch."""

    def run(words: list[str], code: Exit, says: str, *, here: bool = False) -> None:
        if here:
            monkeypatch.chdir(HERE)
            monkeypatch.setattr(sys, "path", list(sys.path))
            for name in [name for name in os.environ if name.startswith("PUF_")]:
                monkeypatch.delenv(name)
            main = {"puf-server": puf_server.cli.main.main, "puf-client": puf_client.cli.main.main}[words[0]]
            done = Finished(main(words[1:]), *capfd.readouterr())
        else:
            done = command(words, env=environment(tmp_path), cwd=HERE)
        _check(done, code, says)

    return run


def _check(done: Finished, code: Exit, says: str) -> None:
    assert (done.code, len(done.errors)) == (code, 1), done.err
    assert says in done.errors[0]
    # Apart from the error there are only log lines, which are JSON without a terminal.
    assert all(line.startswith(("error: ", "{")) for line in done.err.splitlines())
    assert "Traceback" not in done.err
    assert "internal error" not in done.err


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        # A wrong flag.
        ("puf-server serve --stat x --insecure", Exit.USAGE, "did you mean --state?"),
        ("puf-client run --shrad 0/3", Exit.USAGE, "did you mean --shard?"),
        ("puf-lab demo --otu x", Exit.USAGE, "did you mean --out?"),
        ("puf-server tickts", Exit.USAGE, "did you mean tickets?"),
        ("puf-client run --name a --data digits --shard 4/4", Exit.USAGE, "I from 0 to N-1"),
        ("puf-server init --state {tmp}/s --recipe-lr -1", Exit.USAGE, "--recipe-lr must be above 0"),
        ("puf-lab run demo --goals --targets 99,1,2", Exit.USAGE, "must be different clients from 0 to 9"),
        ("puf-lab demo --out {tmp}/mine", Exit.USAGE, "something that is not a demo's"),
        # A missing file.
        ("puf-client run --config {tmp}/none.toml", Exit.USAGE, "none.toml: No such file"),
        ("puf-server serve --config {tmp}/none.toml", Exit.USAGE, "none.toml: No such file"),
        ("puf-server init --state {tmp}/s --model-file {tmp}/none", Exit.USAGE, "cannot read the model file"),
        ("puf-server serve --insecure --state {tmp}/none", Exit.USAGE, "puf-server init"),
        # No server at this address.
        (f"puf-client run --name a --data digits --server {NO_SERVER} --patience 0.5", Exit.UNREACHABLE, "no server"),
        (f"puf-client --unlearn --yes --name a --server {NO_SERVER} --patience 0.5", Exit.UNREACHABLE, "no server"),
        (f"puf-server status --operator {NO_SERVER}", Exit.UNREACHABLE, "is puf-server running there"),
        # An unknown name.
        ("puf-server init --state {tmp}/s --model resnt18", Exit.USAGE, "use one of cifar-cnn, digits-cnn"),
    ],
)
def test_one_line_that_says_what_to_do(line: str, code: Exit, says: str, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("the only copy")
    refused(line.format(tmp=tmp_path).split(), code, says)
    assert not (tmp_path / "s").exists()
    assert (tmp_path / "mine" / "thesis.txt").exists()


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("puf-client check --data digit", Exit.USAGE, "use one of cifar10, cifar100, digits"),
        ("puf-client check --data digits --partition dirchlet:0.3", Exit.USAGE, "iid, dirichlet:ALPHA or hsu:ALPHA"),
        ("puf-client check --data nowhere:load", Exit.USAGE, "there is no module nowhere"),
        # A dataset that is not on disk.
        ("puf-client check --data cifar10 --data-dir {tmp}", Exit.USAGE, "cifar10 is not in"),
        # Out of memory while the model is built, and while it is trained.
        ("puf-server init --state {tmp}/s --model-options classes=1000000000000", Exit.FAILURE, "out of memory"),
        ("puf-client check --data digits --model watched:greedy", Exit.FAILURE, "out of memory while"),
    ],
)
def test_one_line_of_commands_that_load_torch(
    line: str, code: Exit, says: str, refused: Refused, tmp_path: Path
) -> None:
    refused(line.format(tmp=tmp_path).split(), code, says, here=True)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("flag", ["--listen", "--operator"])
def test_a_port_in_use(flag: str, served: Federation, trained: Path, refused: Refused) -> None:
    ports = {"--listen": "127.0.0.1:0", "--operator": "127.0.0.1:0", flag: served.server.address}
    words = [word for pair in ports.items() for word in pair]
    serve = ["puf-server", "serve", "--insecure", "--state", str(trained / "server"), *words]
    refused(serve, Exit.USAGE, f"cannot listen on {served.server.address}: the port is in use")


@pytest.mark.parametrize(
    ("address", "says"),
    [("127.0.0.1:99999", "the port must lie between 0 and 65535"), ("nowhere", "HOST:PORT"), (":x", "HOST:PORT")],
)
def test_an_invalid_address(address: str, says: str, trained: Path, refused: Refused) -> None:
    where = ["--state", str(trained / "server"), "--listen", address, "--operator", "127.0.0.1:0"]
    refused(["puf-server", "serve", "--insecure", *where], Exit.USAGE, says)


def test_a_state_that_another_server_serves(served: Federation, refused: Refused) -> None:
    state = ["--state", str(served.directory / "server"), "--listen", "127.0.0.1:0", "--operator", "127.0.0.1:0"]
    refused(["puf-server", "serve", "--insecure", *state], Exit.USAGE, "another server serves")


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (["--kappa", "99", "--same-data"], Exit.REFUSED, "kappa must lie between"),
        ([], Exit.REFUSED, "If it is the data of training, add --same-data"),
        (["--state", "{clients}", "--shard", "0/4"], Exit.REFUSED, "for example the shard of another client"),
        (["--state", "{clients}", "--shard", "0/4", "--dry-run"], Exit.REFUSED, "20 samples of the data were never"),
        (["--dry-run", "--name", "nobody"], Exit.FAILURE, "nobody is not in this federation"),
        (["--forget", "{tmp}/unknown.txt"], Exit.USAGE, "unknown: digits/train/99999; nothing was filed"),
        (["--forget", "{tmp}/none.txt"], Exit.USAGE, "cannot read {tmp}/none.txt"),
    ],
)
def test_refused_requests_file_nothing(
    flags: list[str], code: Exit, says: str, served: Federation, refused: Refused, tmp_path: Path
) -> None:
    (tmp_path / "unknown.txt").write_text("digits/train/99999\n")
    where = ["--server", served.server.address, "--name", "client-1", "--shard", "1/4", "--state", str(tmp_path / "c")]
    words = ["puf-client", "--unlearn", "--yes", *where, *data_flags(SETTING)]
    words += [f.format(tmp=tmp_path, clients=served.clients) for f in flags]
    refused(words, code, says.format(tmp=tmp_path), here=True)
    assert not served.server.control.tickets()
    assert not list((tmp_path / "c").rglob("requests/*"))
