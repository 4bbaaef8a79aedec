"""An object store for tests: the server of moto, which keeps objects in memory and speaks the S3 protocol.

`PUF_TEST_S3=yes` takes the store that AWS_ENDPOINT_URL_S3 and the credentials of the environment name instead. The tests make
buckets there and leave them.
"""

from __future__ import annotations

import io
import os
import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from puf_lab.federations.processes import Process, wait_until
from puf_server.storage.object_store import address, connect, offered

__all__ = ["Answer", "ObjectStore"]

VARIABLE = "PUF_TEST_S3"
_START_SECONDS = 90.0


class ObjectStore:
    """A running store inside `with`. The environment of this process, and of those that it starts, names it."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "object-store.log"

    def __enter__(self) -> ObjectStore:
        self._environment = pytest.MonkeyPatch()
        self._server: Process | None = None
        if not os.environ.get(VARIABLE):
            self._start()
        self.client: Any = connect()
        return self

    def _start(self) -> None:
        self._server = Process([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"], self._log)
        running = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")
        wait_until(lambda: bool(running.search(self._log.read_text())), _START_SECONDS, self._server)
        (address,) = running.findall(self._log.read_text())
        names = {"AWS_ENDPOINT_URL_S3": address, "AWS_DEFAULT_REGION": "us-east-1"}
        names |= {"AWS_ACCESS_KEY_ID": "puf-test", "AWS_SECRET_ACCESS_KEY": "not-a-secret"}
        for name, value in names.items():
            self._environment.setenv(name, value)
        self._environment.delenv("AWS_PROFILE", raising=False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._environment.undo()
        if self._server is not None:
            self._server.end()

    def bucket(self, **settings: Any) -> str:
        """The address of a prefix in a new bucket."""
        name = f"puf-{secrets.token_hex(6)}"
        self.client.create_bucket(Bucket=name, **settings)
        return f"s3://{name}/federation"

    def versioned(self, url: str, status: str = "Enabled") -> None:
        settings = {"Bucket": address(url)[0], "VersioningConfiguration": {"Status": status}}
        if offered(lambda: self.client.put_bucket_versioning(**settings)) is None:
            pytest.skip("this store has no versions")

    def objects(self, url: str) -> dict[str, bytes]:
        """The content of all versions of all objects of a bucket, by key and version."""
        bucket, _ = address(url)
        listed = offered(lambda: self.client.list_object_versions(Bucket=bucket))
        versions = self.client.list_objects_v2(Bucket=bucket).get("Contents", ()) if listed is None else ()
        found = {}
        for version in versions or (listed or {}).get("Versions", ()):
            where = {"Key": version["Key"]} | ({"VersionId": version["VersionId"]} if "VersionId" in version else {})
            # A server may delete it meanwhile.
            with suppress(self.client.exceptions.ClientError):
                content = self.client.get_object(Bucket=bucket, **where)["Body"].read()
                found[f"{version['Key']}@{version.get('VersionId', '')}"] = content
        return found

    def keys(self, url: str) -> list[str]:
        """All keys below a prefix, without it."""
        _, prefix = address(url)
        return sorted({key.rpartition("@")[0].removeprefix(prefix) for key in self.objects(url)})

    def unfinished(self, url: str) -> list[str]:
        """The keys of unfinished uploads."""
        try:
            listed = self.client.list_multipart_uploads(Bucket=address(url)[0])
        except self.client.exceptions.NoSuchUpload:
            return []
        return [upload["Key"] for upload in listed.get("Uploads", ())]

    def change(self, url: str, key: str, content: bytes) -> None:
        bucket, prefix = address(url)
        self.client.put_object(Bucket=bucket, Key=prefix + key, Body=content)


class Answer(io.BytesIO):
    """The body of an answer that a test gives in the store's place."""

    def stream(self) -> Iterator[bytes]:
        yield self.getvalue()
