"""One rule for the names of clients and operators."""

from __future__ import annotations

import pytest

from puf_common.errors import InvalidArgument, UsageError
from puf_common.names import check_name


@pytest.mark.parametrize("name", ["a", "clinic-7", "A.b_c-d", "7", "x" * 64])
def test_a_plain_name_is_returned(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "x" * 65, "-a", ".a", "_a", "a b", "a/b", "a\n", "ä", "../a", "a\x00"])
def test_any_other_text_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be a name: 1 to 64 letters"):
        check_name(name)
    with pytest.raises(InvalidArgument):
        check_name(name, InvalidArgument)
