"""Experiments as TOML files. A file may build on others (`base = "cifar100-iid"`) and state only the differences.

Of several bases each replaces values of those before it. A profile is such a difference that fits many files. Built-in
files are in `settings/`; parts in `settings/shared/` are bases only. A path is accepted wherever a name is.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from puf_common.errors import UsageError
from puf_lab.spec.experiment import ExperimentSpec

PROFILES = ("paper", "author-code")
QUALITY = "quality-"
_DEPTH = 5


def names() -> list[str]:
    """Built-in settings. Those of `puf-lab quality` begin with QUALITY."""
    return sorted(e.name.removesuffix(".toml") for e in files("puf_lab.settings").iterdir() if e.name.endswith(".toml"))


def load_experiment(spec: str, *, profile: str = "paper") -> ExperimentSpec:
    """A built-in setting by name, or the file at a path, under a profile."""
    raw = _read(spec)
    raw = _merged(raw, _profile(profile, raw))
    name = Path(spec).stem if _is_path(spec) else spec
    return ExperimentSpec.checked({**raw, "name": name, "profile": profile}, spec)


def _profile(profile: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """What a profile changes for this dataset and this network. The profile's file has one table for each."""
    if profile not in PROFILES:
        raise UsageError(f"there is no profile {profile!r}; use one of {', '.join(PROFILES)}")
    tables = tomllib.loads(files("puf_lab.settings").joinpath("profiles", f"{profile}.toml").read_text())
    change: dict[str, Any] = tables.get(str(raw.get("data", {}).get("name", "digits")), {})
    change = _merged(change, tables.get(str(raw.get("model", {}).get("name", "")), {}))
    if "samples" in raw:
        change = _merged(change, {"defaults": _samples_reading(profile, raw)})
    lr = raw.get("recipe", {}).get("lr")
    if profile == "author-code" and lr is not None:
        # In the code the two rates of MoDe's guidance are exchanged: targets learn their labels at the rate of training.
        change = _merged(change, {"defaults": {"mode": {"lr_guide_target": lr}}})
    return change


def _samples_reading(profile: str, raw: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """How PUF forgets single samples, and how strongly under the literal rates.

    In the code a target also sends an update of its other samples in Regular, and Special divides by all samples of the
    target. The paper speaks of the forget data only, and its figures of both modes are alike: the same strength. A
    setting that states `rest` keeps it.
    """
    defaults = raw.get("defaults", {})
    rate = defaults.get("puf-special", {}).get("eta_u")
    regular = {"rest": profile == "author-code"} | defaults.get("puf-regular", {})
    if rate is None:
        return {"puf-regular": regular}
    if profile == "author-code":
        return {"puf-special": {"eta_u": rate * raw["samples"].get("fraction", 0.5)}, "puf-regular": regular}
    return {"puf-regular": {name: value for name, value in regular.items() if name != "eta_u"} | {"kappa": rate}}


def _is_path(spec: str) -> bool:
    return spec.endswith(".toml") or "/" in spec


def _read(spec: str, depth: int = 0) -> dict[str, Any]:
    if depth > _DEPTH:
        raise UsageError(f"setting {spec} builds on itself")
    try:
        text = Path(spec).read_text() if _is_path(spec) else _built_in(spec)
        raw = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"cannot read the setting {spec}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"setting {spec} is not TOML: {error}") from None
    bases = raw.pop("base", [])
    merged: dict[str, Any] = {}
    for base in [bases] if isinstance(bases, str) else bases:
        beside = _is_path(base) and _is_path(spec)
        merged = _merged(merged, _read(str(Path(spec).parent / base) if beside else base, depth + 1))
    return _merged(merged, raw)


def _built_in(name: str) -> str:
    shared = files("puf_lab.settings").joinpath("shared", f"{name}.toml")
    if shared.is_file():
        return shared.read_text()
    if name not in names():
        raise UsageError(f"there is no setting {name!r}; `puf-lab list` shows them, or name your own FILE.toml")
    return files("puf_lab.settings").joinpath(f"{name}.toml").read_text()


def _merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Merges tables and replaces other values. kappa and eta_u both state the strength, so one replaces the other."""
    strengths = {"kappa", "eta_u"}
    merged = {key: value for key, value in base.items() if key not in strengths or not strengths & change.keys()}
    for key, value in change.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged
