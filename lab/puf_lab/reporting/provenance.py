"""The commit of the code that produced a result."""

from __future__ import annotations

import subprocess
from pathlib import Path


def commit() -> str:
    """Hash of the checked-out commit, with "+changes" if files differ from it.

    Empty if this file is in no repository, as in an installed package: a repository around it is another project's.
    """
    here = Path(__file__)

    def git(*words: str) -> str:
        command = ["git", "-C", str(here.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603

    try:
        if not git("ls-files", here.name):
            return ""
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except OSError:
        return ""
