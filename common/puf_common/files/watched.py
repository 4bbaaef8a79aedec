"""Values that are read from files, and read again after the files change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


def stamp(path: Path) -> tuple[int, int, int] | None:
    """A value that differs after the file changed; None if there is no file."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


class Watched(Generic[T]):
    """What `read` makes of the files. The constructor reads them once and raises what `read` raises."""

    def __init__(self, read: Callable[[], T], paths: Sequence[Path]) -> None:
        self._read = read
        self._paths = paths
        # Before reading: a change between the two is read twice, not missed.
        self._seen = self.stamps()
        self.value = read()

    def refresh(self) -> bool:
        """Reads the files again if they changed, and says whether it did.

        If `read` raises, the value stays as it was. The next attempt waits for the next change of the files.
        """
        seen = self.stamps()
        if seen == self._seen:
            return False
        self._seen = seen
        self.value = self._read()
        return True

    def replaced(self, value: T) -> None:
        """States the value after this process has written the files."""
        self._seen, self.value = self.stamps(), value

    def stamps(self) -> list[tuple[int, int, int] | None]:
        """A value that differs after one of the files changed."""
        return [stamp(path) for path in self._paths]
