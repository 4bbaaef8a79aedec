"""What users read about settings: no text of pydantic, no empty default."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from puf_client.cli.main import main as client_main
from puf_common.config.messages import explain_all, shown, suggestion
from puf_common.version import VERSION
from puf_lab.cli.main import main as lab_main
from puf_server.cli.main import main as server_main


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")

    whole: int = Field(1, ge=1, le=9)
    number: float = Field(1.0, gt=0, lt=2)
    name: str = Field("a", min_length=1, max_length=3)
    names: list[str] = Field(["a"], min_length=1)
    table: dict[str, int] = {}
    flag: bool = False
    mode: Literal["regular", "special"] = "regular"
    pair: tuple[int, int] = (1, 2)
    even: Annotated[int, Field(multiple_of=2)] = 2

    @field_validator("name")
    @classmethod
    def _allowed(cls, name: str) -> str:
        if name == "no":
            raise ValueError("no, a name greater than nothing is a valid integer")
        return name


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"whole": 0}, "whole must be at least 1"),
        ({"whole": 10}, "whole must be at most 9"),
        ({"whole": "x"}, "whole must be a whole number"),
        ({"whole": 1.5}, "whole must be a whole number"),
        ({"number": 0}, "number must be above 0"),
        ({"number": 2}, "number must be below 2"),
        ({"number": "x"}, "number must be a number"),
        ({"name": ""}, "name must have at least 1 character"),
        ({"name": "abcd"}, "name must have at most 3 characters"),
        ({"name": 3}, "name must be text"),
        ({"name": "no"}, "name: no, a name greater than nothing is a valid integer"),
        ({"names": []}, "names must have at least 1 item"),
        ({"names": 3}, "names must be a list"),
        ({"table": 3}, "table must be a table"),
        ({"table": {"a": "x"}}, "table.a must be a whole number"),
        ({"flag": "x"}, "flag must be true or false"),
        ({"mode": "x"}, "mode must be 'regular' or 'special'"),
        ({"pair": [1]}, "pair.1 is required"),
        ({"even": 3}, "even must be a multiple of 2"),
        ({"wole": 3}, "wole is not a known key"),
        ({"whole": 0, "number": 0}, "whole must be at least 1; number must be above 0"),
    ],
)
def test_errors_are_plain_sentences(given: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate(given)
    assert explain_all(caught.value) == says


def test_a_suggestion_is_near() -> None:
    assert suggestion("rouns", ["rate", "rounds"]) == "; did you mean rounds?"
    assert suggestion("xyz", ["rate", "rounds"]) == ""


def test_values_are_shown_as_a_user_writes_them() -> None:
    assert [shown(v) for v in (None, True, False, [1, 2], {"a": 1}, [], "x")] == [
        "none",
        "yes",
        "no",
        "1,2",
        "a=1",
        "empty",
        "x",
    ]
    assert shown("x" * 100) == "x" * 57 + "..."


COMMANDS = {
    "puf-server": (server_main, ["init", "serve", "certs", "tokens", "backup", "restore", "status"]),
    "puf-client": (client_main, ["run", "unlearn", "receipt", "verify", "check", "fleet", "model", "enroll"]),
    "puf-lab": (lab_main, ["run", "demo", "bench"]),
}


@pytest.mark.parametrize("program", COMMANDS)
def test_help_shows_no_empty_default(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    main, commands = COMMANDS[program]
    for command in commands:
        assert main([command, "--help"]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert "usage:" in text
        assert "(default: )" not in text
        assert "()" not in text


@pytest.mark.parametrize("program", COMMANDS)
def test_every_program_states_its_version(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert COMMANDS[program][0](["--version"]) == 0
    assert capsys.readouterr().out == f"{program} {VERSION}\n"
