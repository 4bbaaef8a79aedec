"""A JSON file in the state directory that commands change and the running server reads."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from puf_common.errors import PufError, StorageCorrupted, UsageError
from puf_common.files.private import write_over
from puf_common.files.watched import Watched
from puf_common.logging import get_logger

log = get_logger(__name__)

M = TypeVar("M", bound=BaseModel)


class ListFile(Generic[M]):
    """The content of one file, in memory. A missing file is an empty list.

    If the file is damaged while a server runs, the last valid content stays in force.
    """

    def __init__(self, path: Path, kind: type[M]) -> None:
        self.path = path
        self._kind = kind
        self._lock = threading.Lock()
        self._watched = Watched(self._read, [path])

    @property
    def value(self) -> M:
        """The content as of the last refresh."""
        return self._watched.value

    def refresh(self) -> object:
        """Reads the file again if it changed. Returns a value that differs after every change. Blocks on the disk."""
        with self._lock:
            try:
                if self._watched.refresh():
                    log.info("list read again", file=self.path.name)
            except (PufError, OSError) as error:
                log.error("changed list not read; its last content stays", file=self.path.name, error=str(error))
            return self._watched.stamps()

    @contextmanager
    def locked(self) -> Iterator[M]:
        """The content, while no other process can change it. Blocks until the lock is free."""
        try:
            directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise UsageError(f"{self.path.parent} is not a state directory: {error.strerror}") from None
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            yield self._read()
        finally:
            os.close(directory)

    def write(self, value: M) -> None:
        """Replaces the content. Call it inside `locked`."""
        write_over(self.path, value.model_dump_json(indent=1).encode())
        with self._lock:
            self._watched.replaced(value)

    def _read(self) -> M:
        try:
            return self._kind.model_validate(json.loads(self.path.read_bytes()))
        except FileNotFoundError:
            return self._kind()
        except PermissionError:
            raise UsageError(f"{self.path} belongs to another user: use the account that runs the server") from None
        except (ValueError, ValidationError):
            raise StorageCorrupted(f"{self.path} is damaged; restore it from a backup", file=self.path) from None
