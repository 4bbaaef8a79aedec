"""Files of a federation as objects of a bucket.

The name of most files contains their digest, which is known only at the end. A new file is therefore first a file without
a name on the local disk, which ends with the process. Its parts are then sent, each with its SHA-256. The object appears
when the store has all parts. It has its name for the server once the store's checksum equals that of what was sent.
"""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from puf_common.files.durable import DISK, Bytes
from puf_server.failpoints import hit
from puf_server.storage.layout import FOLDERS
from puf_server.storage.object_store import StoreUnavailable, address, connect, offered, refuse_keeping, reported
from puf_server.storage.stored_files import StoredFile

# Bytes of a part, and the most parts of an object: limits of the protocol are 5 MiB and 10,000.
_PART, _MOST_PARTS = 8 << 20, 10_000
# Parts of one file that are sent at a time, and of all files.
_STREAMS, _ALL_STREAMS = 4, 8
# Neighbouring tensors of a fold are often short. They are read together.
_AHEAD = 256 << 10
_READ_ATTEMPTS = 3
_DELETED_AT_ONCE = 1000


class Found(NamedTuple):
    """What the store has under a key: a version of an object, or parts of an unfinished upload."""

    key: str
    version: str = ""
    upload: str = ""


class ObjectFiles:
    """Safe to use from any thread. `scratch` is the local directory of files that are being written."""

    def __init__(self, url: str, scratch: Path) -> None:
        self.url = url.rstrip("/")
        self._bucket, self._prefix = address(url)
        self._scratch = scratch
        self._client = connect()
        self._streams = threading.BoundedSemaphore(_ALL_STREAMS)

    def refuse_keeping(self) -> None:
        """Raises where the bucket would keep what is deleted."""
        refuse_keeping(self._client, self._bucket)

    def new(self, draft: str, points: str = "", *, cache: bool = False) -> NewObject:
        return NewObject(self, self._scratch, points)

    def read(self, name: str, last: int | None = None) -> ObjectSource:
        with reported(self.where(name)):
            nbytes = int(self._client.head_object(Bucket=self._bucket, Key=self._prefix + name)["ContentLength"])
        return ObjectSource(self._client, self._bucket, self._prefix + name, nbytes, last)

    def exists(self, name: str) -> bool:
        try:
            with reported(self.where(name)):
                self._client.head_object(Bucket=self._bucket, Key=self._prefix + name)
        except FileNotFoundError:
            return False
        return True

    def names(self, folder: str = "") -> list[str]:
        found = {item.key.removeprefix(self._prefix) for item in self.found(f"{folder}/" if folder else "")}
        return sorted(name for name in found if name.partition("/")[0] in FOLDERS)

    def delete(self, names: Iterable[str]) -> None:
        """Deletes all versions and unfinished uploads of the files. Lists them again to see that they are gone."""
        wanted = frozenset(names)
        begin = next(iter(wanted)) if len(wanted) == 1 else ""
        there = self._found_of(begin, wanted)
        with reported(f"to delete {len(wanted)} files"):
            for item in there:
                if item.upload:
                    # Another process may have ended it.
                    with suppress(FileNotFoundError), reported(item.key):
                        self._client.abort_multipart_upload(Bucket=self._bucket, Key=item.key, UploadId=item.upload)
            objects = [item for item in there if not item.upload]
            for at in range(0, len(objects), _DELETED_AT_ONCE):
                self._delete_objects(objects[at : at + _DELETED_AT_ONCE])
        left = self._found_of(begin, wanted)
        if left:
            raise StoreUnavailable(
                f"the object store still has {left[0].key} after its deletion, and {len(left) - 1} more"
            )

    def _found_of(self, begin: str, names: frozenset[str]) -> list[Found]:
        return [item for item in self.found(begin) if item.key.removeprefix(self._prefix) in names]

    def _delete_objects(self, objects: list[Found]) -> None:
        listed = [{"Key": o.key} | ({"VersionId": o.version} if o.version else {}) for o in objects]
        reply = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": listed, "Quiet": True})
        for failed in reply.get("Errors", ()):
            raise StoreUnavailable(f"the object store does not delete {failed.get('Key')}: {failed.get('Code')}")

    def found(self, begin: str = "") -> list[Found]:
        """All versions of objects and all unfinished uploads whose names begin so."""
        where = {"Bucket": self._bucket, "Prefix": self._prefix + begin}
        with reported(f"to list {self.url}/{begin}"):
            pages = offered(lambda: list(self._client.get_paginator("list_object_versions").paginate(**where)))
            if pages is None:
                plain = self._client.get_paginator("list_objects_v2").paginate(**where)
                found = [Found(o["Key"]) for page in plain for o in page.get("Contents", ())]
            else:
                versions = (v for page in pages for kind in ("Versions", "DeleteMarkers") for v in page.get(kind, ()))
                found = [Found(v["Key"], version=v["VersionId"]) for v in versions]
            # Some stores answer that there is no such upload where there is none.
            with suppress(FileNotFoundError), reported(where["Bucket"]):
                uploads = self._client.get_paginator("list_multipart_uploads").paginate(**where)
                found += [Found(u["Key"], upload=u["UploadId"]) for page in uploads for u in page.get("Uploads", ())]
        return found

    def where(self, name: str) -> str:
        return f"{self.url}/{name}"

    def free_bytes(self) -> None:
        return None

    def send(self, name: str, draft: int, points: str) -> None:
        """Stores the file of a descriptor under its name and compares the checksum that the store then has."""
        nbytes, key = os.fstat(draft).st_size, self._prefix + name
        with reported(self.where(name)):
            if nbytes <= _PART:
                checksum = self._send_whole(key, os.pread(draft, nbytes, 0), points)
            else:
                checksum = self._send_parts(key, draft, nbytes, points)
        _hit(points, "after_rename")
        if not self._arrived(name, draft, nbytes, checksum):
            self.delete([name])
            raise StoreUnavailable(f"{self.where(name)} arrived with other bytes than were sent; it is deleted")

    def _send_whole(self, key: str, content: bytes, points: str) -> bytes:
        checksum = hashlib.sha256(content).digest()
        _hit(points, "after_fsync")
        about = {"ChecksumAlgorithm": "SHA256", "ChecksumSHA256": _text(checksum)}
        self._client.put_object(Bucket=self._bucket, Key=key, Body=content, **about)
        return checksum

    def _send_parts(self, key: str, draft: int, nbytes: int, points: str) -> bytes:
        """Returns the checksum of the whole: the SHA-256 of the checksums of its parts."""
        size = max(_PART, -(-nbytes // _MOST_PARTS))
        where = {"Bucket": self._bucket, "Key": key}
        where["UploadId"] = self._client.create_multipart_upload(**where, ChecksumAlgorithm="SHA256")["UploadId"]

        def send(number: int) -> tuple[dict[str, Any], bytes]:
            with self._streams:
                content = os.pread(draft, size, (number - 1) * size)
                checksum = hashlib.sha256(content).digest()
                about = {"PartNumber": number, "ChecksumSHA256": _text(checksum)}
                return {"ETag": self._client.upload_part(**where, **about, Body=content)["ETag"], **about}, checksum

        pool = ThreadPoolExecutor(_STREAMS, thread_name_prefix="puf-objects")
        try:
            sent = [
                part.result() for part in [pool.submit(send, number) for number in range(1, -(-nbytes // size) + 1)]
            ]
            _hit(points, "after_fsync")
            self._client.complete_multipart_upload(**where, MultipartUpload={"Parts": [part for part, _ in sent]})
        except BaseException:
            pool.shutdown(cancel_futures=True)
            with suppress(OSError), reported(key):
                self._client.abort_multipart_upload(**where)
            raise
        finally:
            pool.shutdown(cancel_futures=True)
        return hashlib.sha256(b"".join(checksum for _, checksum in sent)).digest()

    def _arrived(self, name: str, draft: int, nbytes: int, checksum: bytes) -> bool:
        """Whether the store has what was sent. A store that returns no checksum is read."""
        with reported(self.where(name)):
            head = self._client.head_object(Bucket=self._bucket, Key=self._prefix + name, ChecksumMode="ENABLED")
        if int(head["ContentLength"]) != nbytes:
            return False
        if stored := head.get("ChecksumSHA256"):
            return bool(stored.partition("-")[0] == _text(checksum))
        sha = hashlib.sha256()
        for at in range(0, nbytes, _PART):
            sha.update(os.pread(draft, _PART, at))
        with self.read(name) as source:
            return source.digest() == sha.hexdigest()


class NewObject:
    """A file that is being written: without a name on the local disk, so that it ends with the process."""

    def __init__(self, files: ObjectFiles, scratch: Path, points: str) -> None:
        self._files = files
        self._points = points
        self._file = tempfile.TemporaryFile(dir=scratch, buffering=0)  # noqa: SIM115

    def write(self, data: Bytes) -> None:
        _hit(self._points, "write")
        DISK.write(self._file.fileno(), data)

    def publish(self, name: str) -> None:
        _hit(self._points, "before_fsync")
        self._files.send(name, self._file.fileno(), self._points)
        self._file.close()

    def discard(self) -> None:
        self._file.close()


class ObjectSource(StoredFile):
    """Random access to an object, or to its `last` bytes, by requests for ranges."""

    _block = _PART

    def __init__(self, client: Any, bucket: str, key: str, nbytes: int, last: int | None) -> None:
        self._client = client
        self._bucket = bucket
        self._key = key
        self._begin = 0 if last is None else nbytes - last
        self._nbytes = nbytes - self._begin
        self._ahead = memoryview(b"")
        self._ahead_at = 0
        self._reading = threading.Lock()

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def close(self) -> None:
        self._ahead = memoryview(b"")

    def read_into(self, offset: int, out: memoryview) -> None:
        if not out:
            return
        if offset + len(out) > self._nbytes:
            raise OSError(f"the object ends {offset + len(out) - self._nbytes} bytes early")
        if len(out) >= _AHEAD:
            out[:] = self._fetch(offset, len(out))
            return
        with self._reading:
            at = offset - self._ahead_at
            if at < 0 or at + len(out) > len(self._ahead):
                self._ahead = memoryview(self._fetch(offset, min(_AHEAD, self._nbytes - offset)))
                self._ahead_at, at = offset, 0
            out[:] = self._ahead[at : at + len(out)]

    def _fetch(self, offset: int, nbytes: int) -> bytes:
        begin = self._begin + offset
        try:
            with reported(self._key):
                return self._received(f"bytes={begin}-{begin + nbytes - 1}", nbytes)
        except FileNotFoundError:
            raise StoreUnavailable(f"{self._key} was deleted while it was read") from None

    def _received(self, wanted: str, nbytes: int) -> bytes:
        """The bytes of a range. The library repeats a request that fails, but not an answer that breaks off."""
        from botocore.exceptions import BotoCoreError, IncompleteReadError, ReadTimeoutError, ResponseStreamingError

        broken: BotoCoreError | None = None
        for _ in range(_READ_ATTEMPTS):
            answer = self._client.get_object(Bucket=self._bucket, Key=self._key, Range=wanted)
            try:
                with answer["Body"] as body:
                    content: bytes = body.read()
            except (IncompleteReadError, ReadTimeoutError, ResponseStreamingError) as error:
                broken = error
                continue
            if len(content) != nbytes:
                raise OSError(f"the object {self._key} ends {nbytes - len(content)} bytes early")
            return content
        assert broken is not None
        raise broken


def _text(checksum: bytes) -> str:
    return base64.b64encode(checksum).decode()


def _hit(points: str, where: str) -> None:
    if points:
        hit(f"{points}.{where}")
