"""Plain sentences about settings: values, suggestions, and what is wrong with a value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

# Parts of pydantic's messages, and what is shown instead.
_PLAIN = (
    (r"^Input should be ", "must be "),
    (r"^(String|List|Tuple|Set|Dictionary|Data|Value) should ", "must "),
    (r"^Extra inputs are not permitted$", "is not a known key"),
    (r"^Field required$", "is required"),
    (r"(,| instead of| after validation,) (unable to|got a number|not \d+$).*", ""),
    (r"greater than or equal to", "at least"),
    (r"less than or equal to", "at most"),
    (r"greater than", "above"),
    (r"less than", "below"),
    (r"a valid integer", "a whole number"),
    (r"a valid (dictionary|mapping).*", "a table"),
    (r"a valid boolean", "true or false"),
    (r"a valid string", "text"),
    (r"a valid ", "a "),
)


def explain(details: ErrorDetails) -> str:
    """What is wrong with a value, in plain words: "must be at least 1", or the text that a validator raised."""
    text = details["msg"]
    if details["type"] in ("value_error", "assertion_error"):
        return text.partition(", ")[2]
    for pattern, plain in _PLAIN:
        text = re.sub(pattern, plain, text)
    return text


def explain_all(error: ValidationError) -> str:
    """All that is wrong, each with the name of its field, on one line."""
    found = error.errors(include_url=False)
    return "; ".join(about(".".join(map(str, details["loc"])), explain(details)) for details in found)


def about(subject: str, text: str) -> str:
    """A sentence of a subject and the text of `explain`."""
    if not subject:
        return text
    return f"{subject}{' ' if text.startswith(('must ', 'is ')) else ': '}{text}"


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the known name that is most like the word; empty if none is."""
    from difflib import get_close_matches

    forms = {name.replace("-", "_").lower(): name for name in known}
    near = get_close_matches(word.replace("-", "_").lower(), forms, 1)
    return f"; did you mean {forms[near[0]]}?" if near else ""


def shown(value: object, *, quote: bool = False) -> str:
    """The value as a user would write it, shortened. `quote` shows what was given, with quotes around text."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower() if quote else ("yes" if value else "no")
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, Mapping) and not quote:
        return ",".join(f"{key}={shown(item)}" for key, item in value.items()) or "empty"
    if isinstance(value, (list, tuple, set, frozenset)) and not quote:
        return ",".join(map(shown, value)) or "empty"
    text = repr(value) if quote else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
