"""The trackers, by the word before the colon in `--track`. Their packages are imported only when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from puf_common.errors import UsageError
from puf_server.tracking.figures import Figures


class Tracker(Protocol):
    """One federation's run at a tracker. Every method may block and may raise; the caller tries again."""

    def log(self, figures: Figures) -> None: ...
    def tag(self, tags: Mapping[str, str]) -> None: ...
    def model(self, file: Path, tags: Mapping[str, str]) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    """Event files in DIR/FEDERATION. TensorBoard has no place for files, so a model is its digest as text."""

    def __init__(self, package: Any, where: str, federation: str) -> None:
        self._writer = package.SummaryWriter(str(Path(where) / federation))

    def log(self, figures: Figures) -> None:
        for name, value in figures.values.items():
            self._writer.add_scalar(name, value, figures.round, walltime=figures.at)
        self._writer.flush()

    def tag(self, tags: Mapping[str, str]) -> None:
        rows = "\n".join(f"| {name} | {value} |" for name, value in tags.items())
        self._writer.add_text("tags", f"| tag | value |\n|---|---|\n{rows}", int(tags["puf.model.version"]))
        self._writer.flush()

    def model(self, file: Path, tags: Mapping[str, str]) -> None:
        self._writer.add_text("model", tags["puf.model.digest"], int(tags["puf.model.version"]))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Mlflow:
    """One run for each federation, in the experiment with the federation's title. A restarted server continues it."""

    def __init__(self, package: Any, where: str, federation: str) -> None:
        self._entities = import_module("mlflow.entities")
        self._client, self._federation, self._run = package.MlflowClient(tracking_uri=where), federation, ""

    def log(self, figures: Figures) -> None:
        at = int(figures.at * 1000)
        metrics = [self._entities.Metric(name, value, at, figures.round) for name, value in figures.values.items()]
        self._client.log_batch(self._run_id(), metrics=metrics)

    def tag(self, tags: Mapping[str, str]) -> None:
        named = [self._entities.RunTag(name, value) for name, value in tags.items()]
        self._client.log_batch(self._run_id(), tags=named)

    def model(self, file: Path, tags: Mapping[str, str]) -> None:
        self._client.log_artifact(self._run_id(), str(file), "models")

    def close(self) -> None:
        if self._run:
            self._client.set_terminated(self._run)

    def _run_id(self) -> str:
        if not self._run:
            name = f"puf {self._federation}"
            known = self._client.get_experiment_by_name(name)
            experiment = known.experiment_id if known is not None else self._client.create_experiment(name)
            runs = self._client.search_runs([experiment], max_results=1)
            self._run = (
                runs[0] if runs else self._client.create_run(experiment, run_name=self._federation)
            ).info.run_id
        return self._run


class Wandb:
    """One run for each federation in the project. A restarted server continues it."""

    def __init__(self, package: Any, where: str, federation: str) -> None:
        self._package = package
        self._run = package.init(project=where, id=federation, name=federation, resume="allow")
        self._run.define_metric("*", step_metric="round")

    def log(self, figures: Figures) -> None:
        self._run.log({**figures.values, "round": figures.round})

    def tag(self, tags: Mapping[str, str]) -> None:
        self._run.config.update(dict(tags), allow_val_change=True)

    def model(self, file: Path, tags: Mapping[str, str]) -> None:
        artifact = self._package.Artifact("model", type="model", metadata=dict(tags))
        artifact.add_file(str(file))
        self._run.log_artifact(artifact)

    def close(self) -> None:
        self._run.finish()


_KINDS: dict[str, tuple[str, Callable[[Any, str, str], Tracker]]] = {
    "tensorboard": ("tensorboardX", TensorBoard),
    "mlflow": ("mlflow", Mlflow),
    "wandb": ("wandb", Wandb),
}


def tracker_named(spec: str) -> Callable[[str], Tracker]:
    """Returns a function that opens the tracker for a federation's id. Raises for an unknown or missing tracker."""
    kind, _, where = spec.partition(":")
    if kind not in _KINDS or not where:
        raise UsageError(f"--track {spec!r} must be tensorboard:DIR, mlflow:URI or wandb:PROJECT")
    name, make = _KINDS[kind]
    if find_spec(name) is None:
        raise UsageError(f"--track {kind} needs {name}: pip install 'puf-fl[{kind}]'")
    # The import takes seconds, and the caller is a thread beside the server.
    return lambda federation: make(import_module(name), where, federation)
