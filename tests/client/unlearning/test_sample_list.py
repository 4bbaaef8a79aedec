"""A list of samples to forget must match the data exactly."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puf_client.unlearning.sample_list import parse, read
from puf_common.errors import UsageError

IDS = ["s0", "s1", "s2", "s3", "s4", "s#5"]
GROUPS = ["ann", "bob", "ann", "cem", "bob", "ann"]


def test_ids_groups_comments_and_blanks() -> None:
    assert parse("# a comment\n\n  s3 \ngroup:bob\n", IDS, GROUPS) == [1, 3, 4]


def test_a_hash_inside_an_id_is_not_a_comment() -> None:
    assert parse("s#5", IDS, None) == [5]


def test_files_of_other_systems_are_read(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes("\ufeffs0\r\ns2\r\n".encode())
    assert read(path, IDS, None) == [0, 2]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no sample"),
        ("# only a comment", "names no sample"),
        ("s0\ns9", "unknown: s9"),
        ("s0\ns0", "twice: s0"),
        ("group:dan", "unknown: group:dan"),
        ("group:ann\ngroup:ann", "twice: group:ann"),
        ("group:ann\ns2", "by its group: s2"),
        ("S0", "unknown: S0"),
        ("a\nb\nc\nd\ne\nf\ng", "a, b, c, d, e and 2 more"),
    ],
)
def test_any_other_list_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse(text, IDS, GROUPS)


def test_groups_of_data_without_groups_are_explained() -> None:
    with pytest.raises(UsageError, match="no groups"):
        parse("group:ann", IDS, None)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.txt"):
        read(tmp_path / "gone.txt", IDS, None)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="UTF-8"):
        read(tmp_path / "bytes", IDS, None)


@given(st.sets(st.integers(0, 49), min_size=1), st.randoms())
def test_any_samples_in_any_order_are_found(chosen: set[int], random: Random) -> None:
    ids = [f"id {i}" for i in range(50)]
    lines = [ids[i] for i in chosen]
    random.shuffle(lines)
    assert parse("\n".join(lines), ids, None) == sorted(chosen)
