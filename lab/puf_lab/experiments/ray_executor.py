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
    # Ray must not report usage, and a local cluster needs no dashboard.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    where: dict[str, Any] = {"address": address} if address else {"include_dashboard": False}
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **where)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise PufError(f"no Ray cluster at {address or 'this machine'}: {error}") from None
    resources = {"num_cpus": 1, "num_gpus": 1 if device.startswith("cuda") else 0}

    def run_all(function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        remote: Any = ray.remote(max_retries=_RETRIES, retry_exceptions=[OSError], **resources)(function)
        submitted = {remote.remote(*task): index for index, task in enumerate(tasks)}
        left = list(submitted)
        while left:
            (done,), left = ray.wait(left, num_returns=1)
            try:
                yield submitted[done], ray.get(done)
            except ray.exceptions.RayTaskError as error:
                raise error.as_instanceof_cause() from None

    try:
        yield run_all
    finally:
        ray.shutdown()
