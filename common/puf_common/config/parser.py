"""An argument parser with clear errors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from puf_common.config.messages import suggestion
from puf_common.errors import UsageError


class _ShowVersion(argparse.Action):
    """Looks the version up only when it is asked for: that takes longer than showing help."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from puf_common.version import VERSION

        sys.stdout.write(f"{parser.prog} {VERSION}\n")
        parser.exit()


class _ShowCompletion(argparse.Action):
    """Prints a script for a shell. The parser with the flags of all commands is made only then."""

    def __init__(self, *args: Any, whole: Callable[[], argparse.ArgumentParser], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._whole = whole

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Any = None
    ) -> NoReturn:
        import shtab

        sys.stdout.write(shtab.complete(self._whole(), str(values)))
        parser.exit()


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError with one line and proposes the flag that was probably meant."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # An abbreviation that works today would break when a flag is added.
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def add_version(self) -> None:
        """Adds --version."""
        self.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version and exit")

    def add_completion(self, whole: Callable[[], argparse.ArgumentParser]) -> None:
        """Adds --completion. `whole` returns the parser with the flags of all commands."""
        text = "print a script that completes commands and flags in this shell, and exit"
        self.add_argument("--completion", choices=("bash", "zsh"), action=_ShowCompletion, whole=whole, help=text)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message.removeprefix('argument ')} (see {self.prog} --help)")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        # Raised here, not in parse_args, so that the flags of the subcommand are proposed.
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            flag = next((word for word in unknown if word.startswith("-")), unknown[0]).split("=")[0]
            kind = "flag" if flag.startswith("-") else "argument"
            self.error(f"unknown {kind} {flag}{suggestion(flag, self._option_string_actions)}")
        return known, []

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            allowed = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(
                action, f"{value!r} is not one of {', '.join(allowed)}{suggestion(str(value), allowed)}"
            )
