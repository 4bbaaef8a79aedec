"""Finished jobs on disk, by content hash. A job is stored completely or not at all; a killed job starts again."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from puf_common.errors import UsageError
from puf_common.files.private import write_over
from puf_lab.experiments.jobs import Job

# Machines may share the directory, and process ids are those of one machine.
_HOST = platform.node() or "localhost"


class Cache:
    """`root/KEY/`: outcome.json, models as raw payloads, and for an original the federation to continue from.

    The directory is created with the first job.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, job: Job) -> Path:
        return self.root / job.key

    def has(self, job: Job) -> bool:
        return (self.folder(job) / "outcome.json").exists()

    @contextmanager
    def building(self, job: Job) -> Iterator[Path]:
        """A folder that takes the job's place when the block ends. Leftovers of a killed process are deleted."""
        draft = self.root / f".{job.key}.{_HOST}.{os.getpid()}.part"
        shutil.rmtree(draft, ignore_errors=True)
        try:
            draft.mkdir(parents=True)
        except OSError as error:
            raise UsageError(f"cannot write to the cache {self.root}: {error.strerror}") from None
        try:
            yield draft
            if not self.has(job):
                shutil.rmtree(self.folder(job), ignore_errors=True)
                try:
                    draft.rename(self.folder(job))
                except OSError:
                    # Another process has finished the same job at the same time. Its content is the same.
                    if not self.has(job):
                        raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def outcome(self, job: Job) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder(job) / "outcome.json").read_text())
        return found

    def payload(self, job: Job, stage: int | None = None) -> bytes:
        """The model of an original or retrained federation, or the model of a round after unlearning."""
        return (self.folder(job) / model_name(stage)).read_bytes()

    def note(self, job: Job, name: str, content: Any) -> None:
        """Stores content that can be computed again."""
        write_over(self.folder(job) / name, json.dumps(content).encode(), mode=0o644)

    def noted(self, job: Job, name: str) -> Any:
        path = self.folder(job) / name
        return json.loads(path.read_text()) if path.exists() else None

    def delete_orphans(self) -> None:
        """Deletes unfinished folders of processes of this machine that no longer run. Others may share the directory."""
        for draft in self.root.glob(f".*.{_HOST}.*.part"):
            pid = draft.name.split(".")[-2]
            if not pid.isdecimal() or not _alive(int(pid)):
                shutil.rmtree(draft, ignore_errors=True)


def model_name(stage: int | None) -> str:
    return "model.bin" if stage is None else f"round-{stage:03d}.bin"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
