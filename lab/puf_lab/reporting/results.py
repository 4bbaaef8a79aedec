"""results.jsonl: one line per target, seed, round and metric. Several files can be combined.

{"kind": "experiment", ...}   the experiment, the machine and the commit
{"kind": "labels", ...}       samples per class and client
{"kind": "run", ...}          one method, target and seed: recovered or not, and its cost
{"kind": "value", ...}        one number
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from puf_common.errors import UsageError
from puf_common.files.private import write_over

if TYPE_CHECKING:
    from pandas import DataFrame

FILE = "results.jsonl"
# Stage name of values of every round. Other stages have the value of every metric at one round.
CURVE = "curve"


@dataclass(frozen=True)
class Run:
    """One method for one target and seed. `values` are metrics by stage, `curve` is (round, test, forget)."""

    method: str
    label: str
    targets: str
    seed: int
    recovered: bool | None = None
    stages: dict[str, int] = field(default_factory=dict)
    nbytes: int = 0
    samples: int = 0
    rounds: int = 0
    seconds: float = 0.0
    values: dict[str, dict[str, float]] = field(default_factory=dict)
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    ending: str = ""
    """What the ticket says about completion, if the service decided it."""
    code: str = ""
    """Digest of the code that made the run. Commit, device and federation are those of the same moment."""
    commit: str = ""
    device: str = ""
    federation: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        return self.method, self.targets, self.seed

    @property
    def cell(self) -> tuple[str, int]:
        return self.targets, self.seed


@dataclass(frozen=True)
class Results:
    """One experiment's runs, from one machine or from several."""

    experiment: dict[str, Any]
    facts: list[dict[str, Any]]
    """Commit, device, kind of federation, seconds and command of each part."""
    runs: list[Run]
    labels: dict[int, list[list[int]]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.experiment["name"])

    def of(self, method: str) -> list[Run]:
        return [run for run in self.runs if run.method == method]

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(run.method for run in self.runs))

    def frame(self) -> DataFrame:
        """`table` as a pandas DataFrame. It needs the extra `lab`."""
        # Imported here, because the lab's commands must start quickly.
        from pandas import DataFrame

        return DataFrame(self.table())

    def table(self) -> list[dict[str, Any]]:
        """One row per value, with method, target, seed, stage, round and metric."""
        return [
            {
                "setting": self.name,
                "profile": self.experiment["profile"],
                **{name: getattr(run, name) for name in ("method", "label", "targets", "seed", "recovered")},
                "stage": stage,
                "round": run.stages.get(stage),
                "metric": metric,
                "value": value,
            }
            for run in self.runs
            for stage, values in run.values.items()
            for metric, value in values.items()
        ]


def lines(results: Results) -> Iterable[dict[str, Any]]:
    base = {"setting": results.name, "profile": results.experiment["profile"]}
    facts = results.facts[-1]
    yield {"kind": "experiment", **base, "experiment": results.experiment, "facts": facts}
    for seed, counts in results.labels.items():
        yield {"kind": "labels", **base, "seed": seed, "counts": counts}
    for run in results.runs:
        run_id = {"method": run.method, "targets": run.targets, "seed": run.seed}
        summary = {k: v for k, v in asdict(run).items() if k not in ("values", "curve", *run_id)}
        yield {"kind": "run", **base, **run_id, **summary}
        where = {
            "code": run.code,
            "commit": run.commit or facts["commit"],
            "device": run.device or facts["device"],
            "federation": run.federation or facts.get("federation", ""),
        }
        for stage, values in run.values.items():
            for metric, value in values.items():
                at = {"stage": stage, "round": run.stages.get(stage), "metric": metric, "value": value}
                yield {"kind": "value", **base, **run_id, **at, **where}
        for number, test, forget in run.curve:
            for metric, value in (("test", test), ("forget", forget)):
                at = {"stage": CURVE, "round": number, "metric": metric, "value": value}
                yield {"kind": "value", **base, **run_id, **at, **where}


def write(results: Results, folder: Path) -> Path:
    """Writes the file into the folder and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    write_over(path, "".join(json.dumps(line) + "\n" for line in lines(results)).encode(), mode=0o644)
    return path


def read(paths: Sequence[Path]) -> list[Results]:
    """Experiments of these files or folders. Parts of one experiment are combined; parts that contradict are refused."""
    found: dict[tuple[str, str], Results] = {}
    for path in paths:
        for results in _read_file(_file_in(path) if path.is_dir() else path):
            key = (results.name, results.experiment["profile"])
            found[key] = _combined(found[key], results) if key in found else results
    return list(found.values())


def _file_in(folder: Path) -> Path:
    """The file of the folder. Rows of large sweeps may be compressed by gzip."""
    packed = folder / f"{FILE}.gz"
    return packed if packed.exists() and not (folder / FILE).exists() else folder / FILE


def _combined(first: Results, second: Results) -> Results:
    narrowing = {"targets", "methods", "seeds"}
    for name, value in first.experiment.items():
        if name not in narrowing and _without_remarks(name, second.experiment.get(name)) != _without_remarks(
            name, value
        ):
            raise UsageError(f"{first.name}: the files do not belong to one experiment, they differ in {name}")
    known = {run.key for run in first.runs}
    runs = [*first.runs, *(run for run in second.runs if run.key not in known)]
    return Results(first.experiment, [*first.facts, *second.facts], runs, {**second.labels, **first.labels})


def _without_remarks(name: str, value: Any) -> Any:
    """The value as files of all versions have it: those of older ones say less about the runs of a sweep."""
    if name != "tuned_on" or value is None:
        return value
    return {key: each for key, each in value.items() if key != "remarks" and each is not None}


def _read_file(path: Path) -> list[Results]:
    try:
        content = path.read_bytes()
        texts = (gzip.decompress(content) if path.suffix == ".gz" else content).decode().splitlines()
    except gzip.BadGzipFile:
        raise UsageError(f"{path} is not a gzip file: `gzip results.jsonl` makes one") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; `puf-lab run` writes it") from None
    found: dict[tuple[str, str], Results] = {}
    runs: dict[tuple[str, str, str, str, int], Run] = {}
    try:
        for text in texts:
            line = json.loads(text)
            where = (line["setting"], line["profile"])
            if line["kind"] == "experiment":
                found[where] = Results(line["experiment"], [line["facts"]], [])
            elif line["kind"] == "labels":
                found[where].labels[line["seed"]] = line["counts"]
            else:
                run_id = (line["method"], line["targets"], line["seed"])
                if line["kind"] == "run":
                    fields = {k: v for k, v in line.items() if k in Run.__dataclass_fields__}
                    runs[*where, *run_id] = run = Run(**fields)
                    found[where].runs.append(run)
                else:
                    _add_value(runs[*where, *run_id], line)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a file of results: {type(error).__name__} {error}") from None
    return list(found.values())


def _add_value(run: Run, line: dict[str, Any]) -> None:
    if line["stage"] != CURVE:
        run.values.setdefault(line["stage"], {})[line["metric"]] = line["value"]
    elif line["metric"] == "test":
        run.curve.append((line["round"], line["value"], float("nan")))
    else:
        number, test, _ = run.curve.pop()
        run.curve.append((number, test, line["value"]))
