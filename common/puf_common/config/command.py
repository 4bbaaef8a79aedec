"""Runs a command and turns errors into a message and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable

from puf_common.config.exit_codes import Exit, exit_code
from puf_common.errors import PufError


def guarded(main: Callable[[], int]) -> int:
    """The exit code of a command. An error becomes one line on stderr; PUF_DEBUG=1 adds the traceback."""
    try:
        code = main()
        sys.stdout.flush()
        return code
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        return _failed(str(stop.code), Exit.FAILURE)
    except KeyboardInterrupt:
        return _failed("interrupted", Exit.INTERRUPTED)
    except BrokenPipeError:
        # The reader of the output is gone. The interpreter flushes again at exit; send that nowhere.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILURE
    except PufError as error:
        return _failed(error.message, exit_code(error))
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            return _failed(f"{error.filename}: {error.strerror}", Exit.FAILURE)
        if _is_out_of_memory(error):
            details = " ".join(str(error).split())
            return _failed(
                f"out of memory: make the model or the data smaller, or free some memory ({details})", Exit.FAILURE
            )
        return _failed(f"internal error: {error!r}; rerun with PUF_DEBUG=1 to see where", Exit.FAILURE)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out. torch has a class for this on GPUs only, and it is too slow to import here."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)
    )


def _failed(message: str, code: Exit) -> Exit:
    if os.environ.get("PUF_DEBUG", "0") not in ("", "0"):
        import traceback

        traceback.print_exc()
    # Text from another machine must not control the terminal.
    for line in message.splitlines():
        safe = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
        sys.stderr.write(f"error: {safe}\n")
    return code
