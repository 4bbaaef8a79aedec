"""Seeds depend on their purpose only, and never change between versions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from puf_common.seeds import derive

PURPOSE = st.lists(st.one_of(st.integers(0, 1000), st.text("abc/", max_size=3)), max_size=4)


def test_known_values() -> None:
    """A federation that goes on with a newer version must draw the same numbers."""
    assert derive(7, "train", 1, "anna", "main", 0) == 4082205322497052766
    assert derive(0) == 2033344993903900207


@given(st.integers(0, 2**63 - 1), PURPOSE)
def test_a_seed_has_63_bits_and_is_reproducible(seed: int, purpose: list[str | int]) -> None:
    assert 0 <= derive(seed, *purpose) < 2**63
    assert derive(seed, *purpose) == derive(seed, *purpose)


@given(PURPOSE, PURPOSE)
def test_different_purposes_have_different_seeds(one: list[str | int], other: list[str | int]) -> None:
    same = list(map(str, one)) == list(map(str, other))
    assert (derive(1, *one) == derive(1, *other)) == same


def test_parts_are_not_joined() -> None:
    assert derive(1, "ab", "c") != derive(1, "a", "bc") != derive(1, "abc")
