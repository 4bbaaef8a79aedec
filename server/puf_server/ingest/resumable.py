"""Uploads whose stream broke, kept for some minutes so that a later stream can continue them.

They exist in memory and as unnamed files in the spool. A restart deletes them. So does every change that makes the
update unwanted, above all a request to be forgotten.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from puf_server.ingest.header import UploadKey
from puf_server.ingest.upload import Upload

# Twice the number of clients that upload at the same time.
_MOST = 16
_SECONDS = 600.0


class ResumableUploads:
    """At most one upload per client, by client, work and digest. Safe to use from any thread."""

    def __init__(self) -> None:
        self._uploads: OrderedDict[UploadKey, tuple[float, Upload]] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, upload: Upload, now: float) -> None:
        """Keeps an upload in place of an earlier one of the same client. The oldest one beyond the limit is deleted."""
        self.drop(upload.key[0])
        with self._lock:
            self._uploads[upload.key] = (now, upload)
            gone = [self._uploads.popitem(last=False)[1][1] for _ in range(len(self._uploads) - _MOST)]
        _discard(gone)

    def find(self, key: UploadKey) -> Upload | None:
        """The upload, which stays here."""
        with self._lock:
            found = self._uploads.get(key)
        return None if found is None else found[1]

    def take(self, key: UploadKey) -> Upload | None:
        """The upload, which belongs to the caller from now on."""
        with self._lock:
            found = self._uploads.pop(key, None)
        return None if found is None else found[1]

    def drop(self, client: str) -> None:
        """Deletes the upload of a client that begins a new one."""
        with self._lock:
            gone = [self._uploads.pop(key)[1] for key in list(self._uploads) if key[0] == client]
        _discard(gone)

    def drop_unwanted(self, now: float) -> None:
        """Deletes uploads that are too old or that no round waits for."""
        with self._lock:
            old = [k for k, (at, upload) in self._uploads.items() if now - at > _SECONDS or not upload.wanted()]
            gone = [self._uploads.pop(key)[1] for key in old]
        _discard(gone)


def _discard(uploads: list[Upload]) -> None:
    """Outside the registry's lock: deleting a file may take a while."""
    for upload in uploads:
        upload.discard()
