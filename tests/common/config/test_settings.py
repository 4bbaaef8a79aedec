"""Settings from flags, environment and file; clear errors; exit codes."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field, SecretStr, field_validator, model_validator

from puf_common.config.command import guarded
from puf_common.config.exit_codes import exit_code
from puf_common.config.parser import Parser
from puf_common.config.settings import add_settings, read_toml, resolve
from puf_common.errors import (
    Forgotten,
    Mismatch,
    NotAuthenticated,
    NotNow,
    NotYours,
    PufError,
    StorageCorrupted,
    Superseded,
    Unavailable,
    UsageError,
)


class Flip(Enum):
    CLIENT = "client"
    SERVER = "server"


class Tls(BaseModel):
    """Certificates of the listener.

    More words that do not belong into the help.
    """

    cert: Path | None = Field(None, description="Certificate file")
    port: int = Field(443, ge=1, le=65535, description="Port; 100 % of them are fine")


class Peer(BaseModel):
    name: str


class Settings(BaseModel):
    server: str = Field(description="Where the server listens.", json_schema_extra={"metavar": "HOST:PORT"})
    rounds: int = Field(30, ge=1, description="Rounds to train.")
    rate: float = Field(0.1, gt=0, description="Learning rate.")
    mode: Literal["regular", "special"] = Field("regular", description="How to forget.")
    flip: Flip = Field(Flip.CLIENT, description="Who flips.")
    level: Literal[1, 2] = Field(1, description="Level.")
    state: Path = Field(Path("state"), description="Directory.")
    targets: list[str] = Field([], description="Who is forgotten.")
    epochs: tuple[Annotated[int, Field(ge=0)], ...] = Field((1, 2), description="Epochs.")
    flips: list[Flip] = Field([], description="Several.")
    options: dict[str, str] = Field({}, description="Options of the data.")
    yes: bool = Field(False, description="Do not ask.")
    cap: int | None = Field(4, description="Limit.")
    deadline: float | Literal["auto"] = Field("auto", description="Deadline.")
    token: SecretStr | None = Field(None, min_length=8, description="Token.")
    tls: Tls = Field(Tls(port=7), description="TLS")
    peers: list[Peer] = Field([], description="Others.")

    @field_validator("rate")
    @classmethod
    def _not_huge(cls, rate: float) -> float:
        if rate > 10:
            raise ValueError("more than 10 never works")
        return rate

    @model_validator(mode="after")
    def _together(self) -> Settings:
        if self.mode == "special" and self.rounds == 13:
            raise ValueError("special and 13 rounds do not go together")
        return self


def settings(*flags: str, env: dict[str, str] | None = None, toml: Path | None = None) -> Settings:
    parser = Parser(prog="puf-test")
    add_settings(parser, Settings, nested=True)
    line = [*flags] if "--server" in flags or "--config" in flags else ["--server", "here:1", *flags]
    return resolve(Settings, parser.parse_args(line), env=env or {}, toml=toml)


def refusal(*flags: str, env: dict[str, str] | None = None, toml: Path | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        settings(*flags, env=env, toml=toml)
    return caught.value.message


@pytest.fixture
def toml(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "puf.toml"
        path.write_text(text)
        return path

    return write


def help_of(model: type[BaseModel], *, nested: bool = False, skip: tuple[str, ...] = ()) -> str:
    parser = Parser(prog="puf-test", formatter_class=lambda prog: argparse.HelpFormatter(prog, width=200))
    add_settings(parser, model, nested=nested, skip=skip)
    return parser.format_help()


class TestPrecedence:
    def test_flags_before_environment_before_file_before_defaults(self, toml: Callable[[str], Path]) -> None:
        file = toml("rounds = 1\nrate = 0.5\ncap = 9\n")
        got = settings("--rounds", "3", env={"PUF_ROUNDS": "2", "PUF_RATE": "0.25"}, toml=file)
        assert (got.rounds, got.rate, got.cap, got.level) == (3, 0.25, 9, 1)

    def test_the_file_comes_from_the_flag_or_the_environment(self, toml: Callable[[str], Path]) -> None:
        file = toml('server = "there:2"\nrounds = 5')
        assert settings("--config", str(file)).rounds == 5
        assert settings(env={"PUF_CONFIG": str(file)}).rounds == 5

    def test_an_empty_variable_counts_as_not_set(self) -> None:
        assert settings(env={"PUF_ROUNDS": "", "PUF_CONFIG": ""}).rounds == 30

    def test_a_value_already_in_the_namespace_counts_as_a_flag(self) -> None:
        assert resolve(Peer, argparse.Namespace(name="a", other=None), env={"PUF_NAME": "b"}).name == "a"

    def test_fields_of_a_nested_model_may_have_different_sources(self, toml: Callable[[str], Path]) -> None:
        got = settings(env={"PUF_TLS_PORT": "8"}, toml=toml('[tls]\ncert = "c.pem"\nport = 9'))
        assert (got.tls.port, got.tls.cert and got.tls.cert.name) == (8, "c.pem")

    def test_a_field_that_is_not_given_keeps_the_parents_default(self) -> None:
        assert settings("--tls-cert", "x").tls == Tls(cert=Path("x"), port=7)
        assert settings().tls.port == 7


class TestTypes:
    def test_lists_are_repeated_or_comma_separated(self, toml: Callable[[str], Path]) -> None:
        assert settings("--targets", "a,b", "--targets", "c").targets == ["a", "b", "c"]
        assert settings(env={"PUF_EPOCHS": "3, 4"}).epochs == (3, 4)
        assert settings(toml=toml('targets = ["a,b", "c"]\nepochs = [5]\nflips = ["server"]')) == settings(
            "--epochs", "5", "--flips", "server"
        ).model_copy(update={"targets": ["a,b", "c"]})

    def test_a_list_given_later_replaces_the_earlier_one(self) -> None:
        assert settings("--targets", "a", env={"PUF_TARGETS": "b,c"}).targets == ["a"]

    def test_tables_are_key_value(self, toml: Callable[[str], Path]) -> None:
        assert settings("--options", "a=1,2", "--options", "b=x=y").options == {"a": "1,2", "b": "x=y"}
        assert settings(env={"PUF_OPTIONS": "a=1,b=2"}).options == {"a": "1", "b": "2"}
        assert settings(toml=toml('[options]\na = "1"')).options == {"a": "1"}
        assert refusal("--options", "a") == "--options: 'a' must be written as key=value"

    def test_booleans_have_two_flags(self) -> None:
        assert settings("--yes").yes
        assert not settings("--no-yes", env={"PUF_YES": "1"}).yes
        assert settings(env={"PUF_YES": "true"}).yes

    def test_choices_are_literals_or_enums_of_any_type(self, toml: Callable[[str], Path]) -> None:
        got = settings("--mode", "special", "--flip", "server", "--level", "2")
        assert (got.mode, got.flip, got.level) == ("special", Flip.SERVER, 2)
        assert settings(env={"PUF_LEVEL": "2"}).level == 2
        assert settings(toml=toml("level = 2")).level == 2

    def test_none_clears_an_optional_field(self, toml: Callable[[str], Path]) -> None:
        assert settings("--cap", "none").cap is None
        assert settings(env={"PUF_CAP": "None"}).cap is None
        assert settings(toml=toml('cap = "none"')).cap is None

    def test_unions_accept_each_of_their_types(self) -> None:
        assert settings("--deadline", "3").deadline == 3.0
        assert settings("--deadline", "auto").deadline == "auto"

    def test_paths_expand_the_home_and_start_at_the_file(self, toml: Callable[[str], Path], tmp_path: Path) -> None:
        assert settings("--state=~/x").state == Path.home() / "x"
        assert settings("--state", "x").state == Path("x")
        got = settings(toml=toml('state = "x"\n[tls]\ncert = "/abs/c"'))
        assert (got.state, got.tls.cert) == (tmp_path / "x", Path("/abs/c"))

    def test_lists_of_tables_are_in_the_file_only(self, toml: Callable[[str], Path]) -> None:
        assert settings(toml=toml('[[peers]]\nname = "a"')).peers == [Peer(name="a")]
        assert "--peers" not in help_of(Settings)

    def test_optional_tables_exist_once_a_part_is_given(self) -> None:
        class Outer(BaseModel):
            tls: Tls | None = None
            peer: Annotated[Peer | None, Field(description="x")] = None

        assert resolve(Outer, argparse.Namespace(), env={}) == Outer()
        assert resolve(Outer, argparse.Namespace(), env={"PUF_TLS_PORT": "5"}).tls == Tls(port=5)


class TestHelp:
    def test_shows_descriptions_defaults_and_choices(self) -> None:
        text = help_of(Settings, nested=True)
        for line in (
            "--server HOST:PORT    Where the server listens (required)",
            "--rounds N            Rounds to train (default: 30)",
            "How to forget (default: regular)",
            "{regular,special}",
            "{client,server}",
            "--yes, --no-yes       Do not ask (default: no)",
            "--epochs N,...        Epochs (default: 1,2)",
            "--options KEY=TEXT    Options of the data (default: empty)",
            "--tls-port N          Port; 100 % of them are fine (default: 7)",
            "Certificates of the listener.",
            "--config FILE",
            "PUF_SOME_NAME",
        ):
            assert line in text
        assert "More words" not in text

    def test_nested_flags_only_when_asked_and_none_for_skipped_fields(self) -> None:
        assert "--tls-port" not in help_of(Settings)
        assert "--rounds" not in help_of(Settings, skip=("rounds",))

    def test_never_shows_a_secret(self) -> None:
        class Secretive(BaseModel):
            token: SecretStr = SecretStr("hunter2!")

        assert "hunter2" not in help_of(Secretive)

    def test_two_models_share_a_parser_and_a_file(self, toml: Callable[[str], Path]) -> None:
        parser = Parser()
        add_settings(parser, Tls)
        add_settings(parser, Peer)
        found = parser.parse_args(["--port", "5"])
        file = toml('name = "a"\nport = 3')
        assert resolve(Tls, found, env={}, toml=file, also=[Peer]).port == 5
        assert resolve(Peer, found, env={}, toml=file, also=[Tls]).name == "a"


class TestRefusals:
    def test_name_the_flag_the_variable_or_the_key(self, toml: Callable[[str], Path]) -> None:
        must = "must be at least 1, not"
        assert refusal("--rounds", "0") == f"--rounds {must} '0'"
        assert refusal(env={"PUF_ROUNDS": "0"}) == f"PUF_ROUNDS {must} '0'"
        assert refusal(toml=toml("rounds = 0")) == f"puf.toml: rounds {must} 0"
        assert refusal(toml=toml("[tls]\nport = 0")) == f"puf.toml: tls.port {must} 0"

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (["--rate", "x"], "--rate must be a number, not 'x'"),
            (["--rate", "11"], "--rate: more than 10 never works"),
            (["--deadline", "x"], "--deadline must be a number or 'auto', not 'x'"),
            (["--mode", "special", "--rounds", "13"], "special and 13 rounds do not go together"),
            (["--epochs", "1,x"], "--epochs must be a whole number, not 'x'"),
            (["--flips", "sever"], "--flips must be 'client' or 'server', not 'sever'; did you mean server?"),
            (
                ["--mode", "speical"],
                "--mode: 'speical' is not one of regular, special; did you mean special? (see puf-test --help)",
            ),
            (["--rounds"], "--rounds: expected one argument (see puf-test --help)"),
            (["--rouns", "3"], "unknown flag --rouns; did you mean --rounds? (see puf-test --help)"),
            (["--batch_size=3"], "unknown flag --batch_size (see puf-test --help)"),
            (["--roun", "3"], "unknown flag --roun; did you mean --rounds? (see puf-test --help)"),
            (["stray"], "unknown argument stray (see puf-test --help)"),
        ],
    )
    def test_are_one_clear_line(self, flags: list[str], message: str) -> None:
        assert refusal(*flags) == message

    def test_propose_a_choice_in_the_environment(self) -> None:
        assert refusal(env={"PUF_FLIP": "serve"}).endswith("did you mean server?")

    def test_list_all_that_is_wrong(self) -> None:
        assert refusal("--rounds", "0", "--rate", "x").count("\n") == 1

    def test_say_how_to_give_what_is_missing(self) -> None:
        parser = Parser()
        add_settings(parser, Settings)
        with pytest.raises(UsageError, match="server is required: set --server, PUF_SERVER or server in the file"):
            resolve(Settings, parser.parse_args([]), env={})

        class Outer(BaseModel):
            peer: Peer

        with pytest.raises(UsageError, match=r"peer\.name is required: set PUF_PEER_NAME or peer\.name in the file"):
            resolve(Outer, argparse.Namespace(), env={})

    def test_never_show_a_secret(self) -> None:
        assert "hunter2" not in refusal("--token", "hunter2")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("rouns = 3", "puf.toml: unknown key rouns; did you mean rounds?"),
            ("nonsense = 3", "puf.toml: unknown key nonsense"),
            ("[tls]\nprot = 3", "puf.toml: unknown key tls.prot; did you mean port?"),
            ('[[peers]]\nnam = "a"', "puf.toml: unknown key peers.nam; did you mean name?"),
            ("tls = 3", "puf.toml: tls must be a table, not 3"),
            ("rounds = true", "puf.toml: rounds must be a number, not true"),
            ("mode = 3", "puf.toml: mode must be 'regular' or 'special', not 3"),
            ("targets = 3", "puf.toml: targets must be a list, not 3"),
        ],
    )
    def test_of_keys(self, toml: Callable[[str], Path], text: str, message: str) -> None:
        assert refusal(toml=toml(text)) == message

    def test_of_files(self, toml: Callable[[str], Path], tmp_path: Path) -> None:
        assert "No such file" in refusal(toml=tmp_path / "none.toml")
        assert "is not valid TOML" in refusal(toml=toml("rounds ="))
        (tmp_path / "latin.toml").write_bytes(b'server = "\xff"')
        assert "is not valid TOML" in refusal(toml=tmp_path / "latin.toml")
        with pytest.raises(UsageError, match="Is a directory"):
            read_toml(tmp_path)

    def test_a_subcommand_proposes_its_own_flags(self) -> None:
        parser = Parser(prog="puf-test")
        commands = parser.add_subparsers(dest="command", required=True)
        add_settings(commands.add_parser("run"), Settings)
        commands.add_parser("status")
        with pytest.raises(UsageError, match=r"did you mean --rounds\? \(see puf-test run --help\)"):
            parser.parse_args(["run", "--rouds", "3"])
        with pytest.raises(UsageError, match="'runn' is not one of run, status; did you mean run"):
            parser.parse_args(["runn"])


def raising(error: BaseException) -> Callable[[], int]:
    def main() -> int:
        raise error

    return main


class TestGuarded:
    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (UsageError("x"), 2),
            (Unavailable("x"), 3),
            (NotYours("x"), 4),
            (NotNow("x"), 4),
            (Mismatch("x"), 4),
            (NotAuthenticated("x"), 4),
            (Forgotten("x"), 10),
            (Superseded("x"), 11),
            (StorageCorrupted("x"), 1),
            (PufError("x"), 1),
        ],
    )
    def test_every_error_has_its_exit_code(self, error: PufError, code: int, capfd: pytest.CaptureFixture[str]) -> None:
        assert guarded(raising(error)) == code == exit_code(error)
        assert capfd.readouterr().err == "error: x\n"

    def test_success_and_argparse_exits_pass(self) -> None:
        assert guarded(lambda: 7) == 7
        assert guarded(raising(SystemExit(0))) == 0
        assert guarded(raising(SystemExit(None))) == 0
        assert guarded(raising(SystemExit(5))) == 5

    def test_an_interrupt_has_its_exit_code(self) -> None:
        assert guarded(raising(KeyboardInterrupt())) == 130

    def test_an_unexpected_exception_is_one_line(
        self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("PUF_DEBUG", raising=False)
        assert guarded(raising(ValueError("boo"))) == 1
        assert (
            capfd.readouterr().err == "error: internal error: ValueError('boo'); rerun with PUF_DEBUG=1 to see where\n"
        )
        assert guarded(raising(PermissionError(13, "Permission denied", "/x"))) == 1
        assert capfd.readouterr().err == "error: /x: Permission denied\n"

    def test_debug_shows_where(self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PUF_DEBUG", "1")
        guarded(raising(UsageError("boo")))
        assert "Traceback" in capfd.readouterr().err

    def test_text_of_another_machine_cannot_control_the_terminal(self, capfd: pytest.CaptureFixture[str]) -> None:
        guarded(raising(NotNow("red \x1b[31m")))
        assert capfd.readouterr().err == "error: red \\x1b[31m\n"

    def test_a_closed_pipe_is_no_error_message(self) -> None:
        program = (
            "import sys; from puf_common.config.command import guarded\n"
            "def main():\n    for _ in range(100000): print('x' * 100)\n    return 0\n"
            "sys.exit(guarded(main))"
        )
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
            assert run.stdout is not None
            assert run.stderr is not None
            run.stdout.readline()
            run.stdout.close()
            assert run.stderr.read() == b""
        assert run.returncode == 1


def test_settings_import_no_heavy_packages() -> None:
    heavy = ("numpy", "grpc", "structlog", "torch", "pydantic", "rich", "tomllib", "google.protobuf")
    program = (
        "import puf_common.config.command, puf_common.config.parser, puf_common.config.settings, sys\n"
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert run.stdout.strip() == "[]"
