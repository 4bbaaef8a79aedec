"""The commit of the code that produced a result."""

from __future__ import annotations

import subprocess
from pathlib import Path


def commit() -> str:
    """Hash of the checked-out commit, with "+changes" if files differ from it. Empty outside of a repository."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except OSError:
        return ""
