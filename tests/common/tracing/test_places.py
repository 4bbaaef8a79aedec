"""The places of rounds and tickets, and the header that carries them."""

from __future__ import annotations

import pytest

from puf_common.tracing.places import Place, place_of_round, place_of_ticket, read_place


def test_every_round_and_ticket_of_every_federation_has_its_own_trace() -> None:
    places = [
        place_of_round("f-1", 1),
        place_of_round("f-1", 2),
        place_of_round("f-2", 1),
        place_of_ticket("f-1", "1"),
        place_of_ticket("f-1", "t-2"),
    ]
    assert len({place.trace for place in places}) == len(places)
    assert places[0] == place_of_round("f-1", 1)


def test_the_place_of_a_round_never_changes() -> None:
    """Processes of different versions must agree."""
    assert place_of_round("f-test", 7) == Place(0xE12B0082B36D8B1195EFF2550E98807D, 0x77F55D0BE94C0E26)


@pytest.mark.parametrize("sampled", [True, False])
def test_a_written_place_reads_back(sampled: bool) -> None:
    place = place_of_ticket("f-test", "t-1")
    text = place.written(sampled=sampled)
    assert read_place(text) == place
    assert text.endswith("01" if sampled else "00")


@pytest.mark.parametrize(
    "text",
    ["", "00", f"00-{0:032x}-{5:016x}-01", f"00-{5:032x}-{0:016x}-01", f"00-{5:032x}-{5:016x}", "00-zz-5-01", "é" * 55],
)
def test_other_text_is_no_place(text: str) -> None:
    assert read_place(text) is None
