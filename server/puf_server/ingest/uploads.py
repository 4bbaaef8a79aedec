"""All uploads of one server: begins them, keeps those whose stream broke, deletes those that are no longer wanted.

Broken uploads are kept for some minutes, in memory and as unnamed files in the spool. A restart deletes them. So does
every change that makes the update unwanted, above all a request to be forgotten. Where several processes serve the
federation, an upload continues at another one: that reads what has arrived from the file and checks it again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from puf_common.errors import TransferCorrupted
from puf_server.core import rounds
from puf_server.engine.engine import Engine
from puf_server.ingest.header import UploadHeader, UploadKey, check
from puf_server.ingest.quota import Quota
from puf_server.ingest.upload import Upload, part_elsewhere

# Twice the number of clients that upload at the same time.
_MOST_BROKEN = 16
_BROKEN_SECONDS = 600.0


class Uploads:
    """Safe to use from any thread. Each method may read or delete files."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.quota = Quota(engine.config.limits, engine.manifest)
        # Broken uploads and when they broke, the oldest first; at most one of each client.
        self._broken: dict[UploadKey, tuple[float, Upload]] = {}
        self._lock = threading.Lock()

    def begin(self, name: str, header: UploadHeader) -> Upload | None:
        """The upload that a header begins or continues. The caller must end it with `book`, `keep` or `discard`.

        None: a committed round has counted this update, and its tensors need not be sent again.
        """
        self.drop_unwanted()
        state = self._engine.state
        if rounds.was_counted(state, name, header, header.digest.hex()):
            return None
        expected = check(header, state, self._engine.config, self._engine.manifest, name)
        if not header.resume_at:
            self._drop(lambda key, _at, _upload: key[0] == name)
            return Upload(self._engine, self.quota, expected)
        with self._lock:
            _, upload = self._broken.pop(expected.key, (0.0, None))
        if upload is not None and upload.received == header.resume_at:
            return upload
        if upload is not None:
            upload.discard()
        continued = Upload.continued(self._engine, self.quota, expected)
        if continued is not None:
            return continued
        raise TransferCorrupted("that part of the update is not here any more; send it from the beginning")

    def offset(self, name: str, header: UploadHeader) -> int:
        """Bytes that a stream for this header may leave out because they are here already."""
        self.drop_unwanted()
        with self._lock:
            _, upload = self._broken.get(header.upload_key(name), (0.0, None))
        if upload is not None:
            return upload.received
        part = part_elsewhere(self._engine, name, header)
        if part is None:
            return 0
        with part:
            return min(part.nbytes, header.byte_length)

    def keep(self, upload: Upload) -> None:
        """Keeps an upload whose stream broke, if a later stream could continue it; deletes it otherwise."""
        if not upload.resumable:
            upload.discard()
            return
        self._drop(lambda key, _at, _upload: key[0] == upload.key[0])
        with self._lock:
            self._broken[upload.key] = (self._engine.clock(), upload)
            surplus = list(self._broken)[:-_MOST_BROKEN]
        self._drop(lambda key, _at, _upload: key in surplus)

    def drop_unwanted(self) -> None:
        """Deletes what has arrived of broken uploads that are too old or no longer wanted."""
        oldest = self._engine.clock() - _BROKEN_SECONDS
        self._drop(lambda _key, at, upload: at < oldest or not upload.wanted())

    def _drop(self, unwanted: Callable[[UploadKey, float, Upload], bool]) -> None:
        with self._lock:
            keys = [key for key, (at, upload) in self._broken.items() if unwanted(key, at, upload)]
            dropped = [self._broken.pop(key)[1] for key in keys]
        # Outside the lock: deleting a file may take a while.
        for upload in dropped:
            upload.discard()
