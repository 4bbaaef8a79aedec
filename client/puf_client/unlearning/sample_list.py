"""The list of samples to forget: sample ids or `group:NAME`, one per line; `#` begins a comment line.

    # consent withdrawn on 3 March
    scan-0017
    group:patient-42

A list that does not match the data exactly is refused: with a mistyped id, a sample would stay in the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from puf_common.errors import UsageError

_SHOWN = 5
_GROUP = "group:"


def read(path: Path, ids: Sequence[str], groups: Sequence[str] | None) -> list[int]:
    """Returns the positions of the listed samples, in the order of the data."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text in UTF-8") from None
    return parse(text, ids, groups, str(path))


def parse(text: str, ids: Sequence[str], groups: Sequence[str] | None, source: str = "the list") -> list[int]:
    """Like `read`, for the text itself."""
    entries = [line.strip() for line in text.splitlines()]
    entries = [entry for entry in entries if entry and not entry.startswith("#")]
    if not entries:
        raise UsageError(f"{source} names no sample")
    if groups is None and any(entry.startswith(_GROUP) for entry in entries):
        raise UsageError(f"{source} names a group, but this client's data has no groups")
    position = {sample: index for index, sample in enumerate(ids)}
    members: dict[str, list[int]] = {}
    for index, group in enumerate(groups or ()):
        members.setdefault(f"{_GROUP}{group}", []).append(index)

    _refuse(source, "unknown", [e for e in dict.fromkeys(entries) if e not in position and e not in members])
    _refuse(source, "named twice", [entry for entry, times in Counter(entries).items() if times > 1])
    found = Counter(i for entry in entries for i in ([position[entry]] if entry in position else members[entry]))
    _refuse(source, "named by itself and by its group", [ids[index] for index, times in found.items() if times > 1])
    return sorted(found)


def _refuse(source: str, fault: str, entries: Sequence[str]) -> None:
    if entries:
        shown = ", ".join(entries[:_SHOWN]) + (f" and {len(entries) - _SHOWN} more" if len(entries) > _SHOWN else "")
        raise UsageError(f"{source}: {fault}: {shown}; nothing was filed", entries=len(entries))
