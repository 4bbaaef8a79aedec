"""The real commands of a client against a server that lies: a clear message, an exit code, bounded memory and disk."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from puf_client.cli.main import main as client
from puf_common.tensors.chunk_frames import chunk_frame
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_server.cli.main import main as server
from tests.fuzz.lying_server import Lie, lying, refusal
from tests.running import running

MEMORY = 200_000_000
DISK = 2_000_000
NAN, INF = math.nan, math.inf


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new federation with a small real model; the client trains one round at a time."""
    state = tmp_path_factory.mktemp("template") / "state"
    words = ["init", "--state", str(state), "--model", "digits-cnn", "--plan-rounds", "2", "--plan-min-clients", "1"]
    assert server([*words, "--recipe-batch-size", "50"]) == 0
    # The first training loads code and takes memory that later ones use again.
    warm = state.parent / "warm"
    shutil.copytree(state, warm)
    with running(warm) as real, lying(real.port) as (port, _):
        words = ["run", "--server", f"127.0.0.1:{port}", "--name", "warm", "--state", str(state.parent / "client")]
        assert client([*words, "--data", "digits", "--shard", "0/10"]) == 0
    return state


class Attacked:
    """One command against one lie: exit code, output, the calls that the client made."""

    def __init__(self, template: Path, directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self._template, self._directory, self._capfd = template, directory, capfd

    def run(self, *lies: Lie, command: tuple[str, ...] = ("run",)) -> tuple[int, str]:
        state, mine = self._directory / "server", self._directory / "client"
        shutil.copytree(self._template, state)
        shared = ["--name", "anna", "--state", str(mine), "--patience", "2"]
        data = ["--data", "digits", "--shard", "0/10"] if command[0] in ("run", "--unlearn") else []
        before = psutil.Process().memory_info().rss
        with running(state) as real, lying(real.port, *lies) as (port, self.calls):
            self._capfd.readouterr()
            code = client([*command, "--server", f"127.0.0.1:{port}", *shared, *data])
        out, err = self._capfd.readouterr()
        told = out + err
        assert all(lie.told for lie in lies), "the lie was never told"
        assert "Traceback" not in told, told
        assert "internal error" not in told, told
        assert psutil.Process().memory_info().rss - before < MEMORY
        assert sum(p.stat().st_size for p in mine.rglob("*") if p.is_file()) < DISK
        return code, told


@pytest.fixture
def attacked(template: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Attacked:
    return Attacked(template, tmp_path, capfd)


def test_an_honest_answer_passes_through(attacked: Attacked) -> None:
    code, told = attacked.run(Lie("Describe"))
    assert code == 0, told
    assert attacked.calls["SubmitUpdate"] == 2


def _set(path: str, value: Any) -> Callable[[Any], None]:
    """A change of one field of a message, by its dotted path."""
    *parents, last = path.split(".")

    def change(message: Any) -> None:
        for name in parents:
            message = getattr(message, name)
        if isinstance(value, list):
            getattr(message, last)[:] = value
        else:
            setattr(message, last, value)

    return change


def _tensor(name: str, value: Any) -> Callable[[fed.DescribeReply], None]:
    def change(reply: fed.DescribeReply) -> None:
        if isinstance(value, list):
            getattr(reply.manifest.tensors[0], name)[:] = value
        else:
            setattr(reply.manifest.tensors[0], name, value)

    return change


def _many_tensors(reply: fed.DescribeReply) -> None:
    for i in range(20_000):
        reply.manifest.tensors.add(name=f"t{i}", dtype=2, shape=[2**40, 2**40], role=1)


BAD_DESCRIPTIONS: dict[str, Callable[[Any], bytes | None]] = {
    "unknown dtype": _tensor("dtype", 99),
    "unknown role": _tensor("role", 99),
    "huge shape": _tensor("shape", [2**63, 2**63]),
    "another fingerprint": _set("manifest.fingerprint", b"x" * 32),
    "no manifest": lambda reply: reply.ClearField("manifest"),
    "many huge tensors": _many_tensors,
    "empty federation id": _set("federation_id", ""),
    "long federation id": _set("federation_id", "f" * 5000),
    "model of another program": _set("model", "os:system"),
    "model with huge options": lambda reply: reply.model_options.update(classes="100000000000"),
    "model with bad options": lambda reply: reply.model_options.update(classes="-1"),
    "task of another program": _set("task", "os:system"),
    "threads": _set("recipe.threads", 2**32 - 1),
    "no batch": _set("recipe.batch_size", 0),
    "optimizer": _set("recipe.optimizer", "\x1b[2J"),
    "momentum": _set("recipe.momentum", NAN),
    "weight decay": _set("recipe.weight_decay", -INF),
    "encoding": _set("update_encoding", 77),
    "not a description": lambda _: b"\xff" * 100,
}


@pytest.mark.parametrize("name", BAD_DESCRIPTIONS)
def test_a_bad_description_ends_the_client_with_a_message(name: str, attacked: Attacked) -> None:
    code, told = attacked.run(Lie("Describe", BAD_DESCRIPTIONS[name]))
    assert code in (1, 2, 3, 4) or "declining work" in told, told
    assert not attacked.calls["SubmitUpdate"]


def test_a_federation_id_names_no_other_directory(attacked: Attacked, tmp_path: Path) -> None:
    code, told = attacked.run(Lie("Describe", _set("federation_id", "../../escaped")))
    assert code == 0, told
    assert {p.name for p in tmp_path.iterdir()} == {"client", "server"}
    assert [p.name.startswith(".") for p in (tmp_path / "client").iterdir()] == [False]


BAD_JOINS: dict[str, Callable[[Any], None]] = {
    "heartbeat nan": _set("heartbeat_seconds", NAN),
    "heartbeat inf": _set("heartbeat_seconds", INF),
    "heartbeat negative": _set("heartbeat_seconds", -5.0),
    "heartbeat tiny": _set("heartbeat_seconds", 1e-300),
    "heartbeat huge": _set("heartbeat_seconds", 1e300),
}


@pytest.mark.parametrize("name", BAD_JOINS)
def test_a_bad_answer_to_a_join_ends_the_client_with_a_message(name: str, attacked: Attacked) -> None:
    code, told = attacked.run(Lie("Join", BAD_JOINS[name]))
    assert code in (1, 4), told
    assert "error: " in told


def test_chunks_of_one_byte_are_not_sent(attacked: Attacked) -> None:
    code, told = attacked.run(Lie("Join", _set("chunk_bytes", 1)))
    assert code == 0, told


BAD_WORK: dict[str, Callable[[Any], None]] = {
    "lr nan": _set("train.lr", NAN),
    "lr inf": _set("train.lr", INF),
    "lr negative": _set("train.lr", -0.1),
    "epochs nan": _set("train.epochs", NAN),
    "epochs huge": _set("train.epochs", 1e300),
    "epochs negative": _set("train.epochs", -1.0),
    "scale nan": _set("train.scale", NAN),
    "scale inf": _set("train.scale", INF),
    "scale huge": _set("train.scale", 1e308),
    "scale negative without a request": _set("train.scale", -1.0),
    "flip": _set("train.flip", 99),
    "part": _set("train.key.part", 99),
    "routine": _set("train.routine", "rm -rf /"),
    "output": _set("train.outputs", ["no.such.tensor"]),
    "outputs by the thousand": _set("train.outputs", [f"t{i}" for i in range(50_000)]),
    "samples": _set("train.samples", 2**64 - 1),
    "base version": _set("train.base_version", 2**64 - 1),
    "second model": _set("train.aux_version", 2**64 - 1),
    "ticket": _set("train.ticket_id", "../../etc/passwd"),
    "round": _set("train.key.round", 2**64 - 1),
    "stream round": _set("train.stream_round", 2**64 - 1),
    "seconds left": _set("train.seconds_left", NAN),
    "membership": _set("train.key.membership", 2**64 - 1),
}


@pytest.mark.parametrize("name", BAD_WORK)
def test_absurd_work_is_declined_or_ends_the_client(name: str, attacked: Attacked) -> None:
    def change(reply: fed.WaitForWorkReply) -> None:
        if reply.HasField("train"):
            BAD_WORK[name](reply)

    code, told = attacked.run(Lie("WaitForWork", change))
    assert code in (0, 1, 2, 4), told
    if name in HARMLESS:
        return
    if name not in NOT_THERE:
        assert "declining work" in told or "error: " in told, told
    assert not attacked.calls["SubmitUpdate"], told


# The client sends an update that the real server refuses; nothing at the client depends on these values.
HARMLESS = {"samples", "round", "stream round", "membership", "seconds left", "ticket"}
# The real server has no such model, which can also happen after a round.
NOT_THERE = {"base version", "second model"}


def test_a_bad_dose_is_declined(attacked: Attacked) -> None:
    def change(reply: fed.WaitForWorkReply) -> None:
        if reply.HasField("train"):
            reply.train.routine = "dose"
            reply.train.unseen.CopyFrom(tk.ClassTable(bins=[2**63] * 3, sums=[NAN, -1.0], squares=[INF]))

    code, told = attacked.run(Lie("WaitForWork", change))
    assert code in (0, 1, 2), told
    assert not attacked.calls["SubmitUpdate"], told


@pytest.mark.parametrize(
    "wrong", [{"growth": 1.0}, {"growth": NAN}, {"min_kappa": -1.0}, {"max_kappa": INF}, {"x": 1e300}]
)
def test_a_search_for_a_dose_ends(wrong: dict[str, float], attacked: Attacked) -> None:
    def change(reply: fed.WaitForWorkReply) -> None:
        if reply.HasField("train"):
            reply.train.routine = "dose"
            usual = {"min_kappa": 0.125, "max_kappa": 8.0, "growth": 1.25, "margin": 0.15, "largest_fall": 1.0}
            reply.train.options.update(usual | wrong)

    code, told = attacked.run(Lie("WaitForWork", change))
    assert code in (0, 1, 2), told
    assert not attacked.calls["SubmitUpdate"], told


def test_an_unknown_order_to_leave_ends_the_client(attacked: Attacked) -> None:
    def change(reply: fed.WaitForWorkReply) -> None:
        reply.leave.reason = 99  # type: ignore[assignment]
        reply.leave.message = "\x1b[2Jbye"

    code, told = attacked.run(Lie("WaitForWork", change))
    assert code in (0, 1, 4), told
    assert "\x1b[2J" not in told


def test_unknown_work_ends_in_waiting(attacked: Attacked) -> None:
    code, told = attacked.run(Lie("WaitForWork", lambda reply: reply.ClearField("train")))
    assert code == 0, told


# -- models ------------------------------------------------------------------------------------------------------------


def _endless(frames: Iterator[bytes]) -> Iterator[bytes]:
    yield from frames
    at = 0
    while True:
        yield chunk_frame(at, b"\x00" * 1_000_000)
        at += 1_000_000


def _empty_chunks(frames: Iterator[bytes]) -> Iterator[bytes]:
    yield next(frames)
    while True:
        yield chunk_frame(0, b"")


def _header(**fields: Any) -> Callable[[Iterator[bytes]], Iterator[bytes]]:
    def change(frames: Iterator[bytes]) -> Iterator[bytes]:
        first = fed.FetchModelReply.FromString(next(frames))
        for name, value in fields.items():
            setattr(first.header, name, value)
        yield first.SerializeToString()
        yield from frames

    return change


def _not_finite(frames: Iterator[bytes]) -> Iterator[bytes]:
    """A model of NaN with a right digest: only its content is wrong."""
    import hashlib

    first = fed.FetchModelReply.FromString(next(frames))
    payload = b"\xff" * first.header.byte_length
    first.header.digest, first.header.blake3 = hashlib.sha256(payload).digest(), b""
    yield first.SerializeToString()
    yield chunk_frame(0, payload)


BAD_MODELS: dict[str, Callable[[Iterator[bytes]], Iterator[bytes]]] = {
    "endless": _endless,
    "empty chunks": _empty_chunks,
    "nothing": lambda frames: iter(()),
    "no header": lambda frames: iter(list(frames)[1:]),
    "cut short": lambda frames: iter(list(frames)[:-1]),
    "two headers": lambda frames: iter([next(frames)] * 2),
    "wrong digest": _header(digest=b"x" * 32, blake3=b""),
    "wrong blake3": _header(blake3=b"x" * 32),
    "short digest": _header(digest=b"x", blake3=b""),
    "huge": _header(byte_length=2**63),
    "none": _header(byte_length=0),
    "other version": _header(version=7),
    "other manifest": _header(manifest_fingerprint=b"x" * 32),
    "other bytes": lambda frames: iter([b"\xff" * 1000]),
    "not finite": _not_finite,
}


@pytest.mark.parametrize("name", BAD_MODELS)
def test_a_bad_model_ends_the_client_with_a_message(name: str, attacked: Attacked) -> None:
    code, told = attacked.run(Lie("FetchModel", frames=BAD_MODELS[name]))
    assert code in (1, 4) or "declining work" in told, told
    assert not attacked.calls["SubmitUpdate"]


# -- statuses ----------------------------------------------------------------------------------------------------------

STATUSES = {
    "delay of an age": refusal(grpc.StatusCode.UNAVAILABLE, "wait", delay=2**53),
    "negative delay": refusal(grpc.StatusCode.UNAVAILABLE, "wait", delay=-5),
    "delay that is no number": refusal(grpc.StatusCode.UNAVAILABLE, "wait", retry_seconds="soon"),
    "delay nan": refusal(grpc.StatusCode.UNAVAILABLE, "wait", retry_seconds="nan"),
    "delay inf": refusal(grpc.StatusCode.UNAVAILABLE, "wait", retry_seconds="inf"),
}


@pytest.mark.parametrize("name", STATUSES)
def test_an_absurd_delay_is_not_waited_for(name: str, attacked: Attacked, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client repeats the call after its own pause, at most the longest that it accepts."""
    monkeypatch.setattr("puf_client.transport.retry._MOST_SECONDS", 0.5)
    code, told = attacked.run(Lie("WaitForWork", status=STATUSES[name], times=2))
    assert code == 0, told


def test_facts_of_a_status_do_not_choose_parameters(attacked: Attacked) -> None:
    status = refusal(grpc.StatusCode.NOT_FOUND, "\x1b[2Jno", reason="NOT_FOUND", message="x", self="y", status="z")
    code, told = attacked.run(Lie("Join", status=status))
    assert code == 1, told
    assert "\x1b[2J" not in told


def test_an_offset_behind_the_end_of_an_update_is_refused(attacked: Attacked) -> None:
    broken = Lie("SubmitUpdate", status=refusal(grpc.StatusCode.UNAVAILABLE, "broken", delay=0), times=1)
    code, told = attacked.run(broken, Lie("FindUpload", _set("offset", 2**64 - 1)))
    assert code in (0, 1), told


# -- other commands ----------------------------------------------------------------------------------------------------


def test_the_status_command_survives_unknown_words_and_times(attacked: Attacked) -> None:
    def description(reply: fed.DescribeReply) -> None:
        reply.position.phase = 99  # type: ignore[assignment]
        reply.title = "\x1b[2J[red]x"

    def tickets(reply: fed.ListMyTicketsReply) -> None:
        for at in (NAN, INF, 1e300, -1e300):
            ticket = reply.tickets.add(id="\x1b[2Jt", state=99, deadline_at=at)
            ticket.request.mode, ticket.request.scope = 99, 99  # type: ignore[assignment]
            ticket.history.add(state=99, at=at, note="\x1b[2Jnote")

    code, told = attacked.run(Lie("Describe", description), Lie("ListMyTickets", tickets), command=("status",))
    assert code in (0, 1, 4), told
    assert "\x1b[2J" not in told


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 100_000, b"\xff\x00", b'{"a": ' * 5000, b"1e999"])
def test_a_bad_receipt_is_refused(content: bytes, attacked: Attacked) -> None:
    """The real server has no such ticket; the lying one answers with other bytes."""
    refused = Lie("GetReceipt", status=None, change=lambda _: fed.GetReceiptReply(receipt=content).SerializeToString())
    code, told = attacked.run(refused, command=("receipt", "t-000000000000"))
    assert code in (1, 2, 4), told
    assert "error: " in told
