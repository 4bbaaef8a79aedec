"""The version of this distribution."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["VERSION"]

try:
    VERSION = version("puf-fl")
except PackageNotFoundError:  # not installed
    VERSION = "0+unknown"
