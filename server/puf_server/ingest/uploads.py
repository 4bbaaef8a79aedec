"""All uploads of one server: begins them, keeps those whose stream broke, deletes those that are no longer wanted."""

from __future__ import annotations

from puf_common.errors import TransferCorrupted
from puf_server.engine.engine import Engine
from puf_server.ingest.header import ExpectedUpdate, UploadHeader, check
from puf_server.ingest.quota import Quota
from puf_server.ingest.resumable import ResumableUploads
from puf_server.ingest.upload import Upload


class Uploads:
    """Safe to use from any thread. Each method may read or delete files."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._resumable = ResumableUploads()
        self.quota = Quota(engine.config.limits, engine.manifest)

    def begin(self, name: str, header: UploadHeader) -> Upload:
        """The upload that a header begins or continues. The caller must end it with `book`, `keep` or `discard`."""
        self.drop_unwanted()
        expected = check(header, self._engine.state, self._engine.config, self._engine.manifest, name)
        if header.resume_at:
            return self._continued(expected)
        self._resumable.drop(name)
        return Upload(self._engine, self.quota, expected)

    def _continued(self, expected: ExpectedUpdate) -> Upload:
        upload = self._resumable.take(expected.key)
        if upload is not None and upload.received == expected.header.resume_at:
            return upload
        if upload is not None:
            upload.discard()
        raise TransferCorrupted("that part of the update is not here any more; send it from the beginning")

    def offset(self, name: str, header: UploadHeader) -> int:
        """Bytes that a stream for this header may leave out because they are here already."""
        self.drop_unwanted()
        found = self._resumable.find(header.upload_key(name))
        return found.received if found is not None else 0

    def keep(self, upload: Upload) -> None:
        """Keeps an upload whose stream broke, if a later stream could continue it; deletes it otherwise."""
        if upload.resumable:
            self._resumable.put(upload, self._engine.clock())
        else:
            upload.discard()

    def drop_unwanted(self) -> None:
        """Deletes what has arrived of broken uploads that are too old or no longer wanted."""
        self._resumable.drop_unwanted(self._engine.clock())
