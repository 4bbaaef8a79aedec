"""A thread that reads committed rounds and sends them to a tracker. It cannot delay or fail a round.

The engine only wakes the thread. A tracker that fails is logged and tried again, with growing pauses; what it has not
accepted yet is sent then. Rounds that were committed before this process started are not sent.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from puf_common.logging import get_logger
from puf_common.tensors.model_file import save
from puf_server.core import scheduler
from puf_server.core.state.models import ModelStatus, ModelVersion
from puf_server.core.state.state import State
from puf_server.engine.engine import Engine
from puf_server.tracking.figures import figures, tags, withdrawn
from puf_server.tracking.trackers import Tracker

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 300.0
# How long the end of the server waits for a tracker.
_CLOSE_SECONDS = 5.0
_BLOCK = 1 << 20

log = get_logger(__name__)


class TrackingFeed:
    """Starts its thread at once. `wake` after every change of the state; `close` at the end."""

    def __init__(self, engine: Engine, opened: Callable[[str], Tracker]) -> None:
        self._engine, self._opened = engine, opened
        self._tracker: Tracker | None = None
        self._sent = {found.key for found in figures(engine.state)}
        self._tags: dict[str, str] = {}
        # Models that the tracker has, by version.
        self._models: dict[int, str] = {}
        self._audited: set[int] = set()
        # What was sent last. The state is kept, so that no other object gets its ids.
        self._seen: tuple[int, int, int, str] | None = None
        self._sent_state: State | None = None
        self._woken, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="puf-tracking", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        """Sends what is left, unless the tracker takes longer than some seconds."""
        self._closing.set()
        self._woken.set()
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            log.warning("the tracker does not answer; the last figures were not sent")

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            self._woken.wait()
            self._woken.clear()
            last = self._closing.is_set()
            try:
                self._send()
                pause = _FIRST_PAUSE
            except Exception as error:
                log.warning("not sent to the tracker; it is tried again", reason=f"{type(error).__name__}: {error}")
                self._closing.wait(pause)
                pause = min(_LONGEST_PAUSE, 2 * pause)
                self._woken.set()
            if last:
                self._end()
                return

    def _send(self) -> None:
        """Sends everything that the tracker does not have yet."""
        state = self._engine.state
        phase = scheduler.phase(state)
        # Records that did not change stay the same objects.
        seen = (id(state.records), id(state.models), id(state.tickets), phase)
        if seen == self._seen:
            return
        if self._tracker is None:
            self._tracker = self._opened(self._engine.config.id)
        for found in figures(state):
            if found.key not in self._sent:
                self._tracker.log(found)
                self._sent.add(found.key)
        if phase == "idle":
            self._send_model(self._tracker, state)
        now = tags(state, self._engine.config)
        gone = withdrawn(state, self._models)
        if gone:
            now["puf.withdrawn_models"] = " ".join(gone)
        if now != self._tags:
            self._tracker.tag(now)
            self._tags = now
        self._seen, self._sent_state = seen, state

    def _send_model(self, tracker: Tracker, state: State) -> None:
        """Sends the federation's model once it is ready. The audit log records it as an export."""
        model = state.models[state.version]
        if model.status is not ModelStatus.READY or model.version == 0 or model.version in self._models:
            return
        facts = {"version": model.version, "digest": model.digest, "status": model.status, "to": "tracker"}
        if model.version not in self._audited:
            self._engine.call(lambda state, now: (state.note("model.exported", now, **facts), None))
            self._audited.add(model.version)
        with tempfile.TemporaryDirectory(prefix="puf-track-") as directory:
            file = Path(directory) / f"model-{model.version}.safetensors"
            self._write(model, file)
            tracker.model(file, tags(state, self._engine.config))
        self._models[model.version] = model.digest

    def _write(self, model: ModelVersion, file: Path) -> None:
        metadata = {"version": str(model.version), "round": str(model.round), "digest": model.digest}
        with self._engine.store.models.read(model) as source:
            save(file, self._engine.manifest, (bytes(block) for block in source.blocks(_BLOCK)), metadata)

    def _end(self) -> None:
        try:
            if self._tracker is not None:
                self._tracker.close()
        except Exception as error:
            log.warning("the tracker was not closed", reason=str(error))
