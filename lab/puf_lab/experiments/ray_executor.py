"""Jobs as tasks of a Ray cluster: an existing one by address, or one on this machine.

Jobs exchange data through the cache, so every node must see it under the same path (a shared file system). A task whose
node dies is given to another node. A federation of processes runs on the node of its task.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from puf_common.errors import PufError, UsageError

_RETRIES = 3


@contextmanager
def ray_tasks(address: str | None, device: str) -> Iterator[Callable[..., Iterator[tuple[int, Any]]]]:
    """A function that runs tasks on the cluster. Each task has one CPU, and one GPU if the device is one."""
    try:
        import ray
    except ModuleNotFoundError:
        raise UsageError("--executor ray needs the package ray: pip install 'puf-fl[lab]'") from None
    if ":" in device:
        raise UsageError(f"--device {device} names a GPU of one machine: with --executor ray use --device cuda")
    # Ray must not report usage, and a local cluster needs no dashboard.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    where: dict[str, Any] = {"address": address} if address else {"include_dashboard": False}
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **where)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise PufError(f"no Ray cluster at {address or 'this machine'}: {error}") from None

    def run_all(function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        options = {"num_cpus": 1, "num_gpus": gpus, "max_retries": _RETRIES, "retry_exceptions": [OSError]}
        remote: Any = ray.remote(**options)(function)
        submitted = {remote.remote(*task): index for index, task in enumerate(tasks)}
        left = list(submitted)
        while left:
            (done,), left = ray.wait(left, num_returns=1)
            try:
                yield submitted[done], ray.get(done)
            except ray.exceptions.RayTaskError as error:
                raise error.as_instanceof_cause() from None

    try:
        gpus = gpus_of_a_task(device, ray.cluster_resources().get("GPU", 0))
        yield run_all
    finally:
        ray.shutdown()


def gpus_of_a_task(device: str, in_cluster: float) -> int:
    """GPUs that Ray reserves for a task: one or none. A task would wait forever for a GPU that no node has."""
    if device == "cuda" and in_cluster < 1:
        raise UsageError("--device cuda needs a GPU, and no node of the Ray cluster has one: use --device cpu or auto")
    return int(device != "cpu" and in_cluster >= 1)
