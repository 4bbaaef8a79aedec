"""What only an object store has: versions, unfinished uploads, settings of the bucket, refusals, and broken answers."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from tests.object_store import Answer, ObjectStore
from tests.running import make_state, tiny_config

from puf_common.errors import Unavailable, UsageError
from puf_server.storage.object_files import ObjectFiles
from puf_server.storage.object_store import address

PART = 8 << 20


@pytest.fixture
def url(object_store: ObjectStore) -> str:
    return object_store.bucket()


@pytest.fixture
def files(url: str, tmp_path: Path) -> ObjectFiles:
    return ObjectFiles(url, tmp_path)


def stored(files: ObjectFiles, name: str, content: bytes) -> None:
    file = files.new(name)
    try:
        file.write(content)
        file.publish(name)
    finally:
        file.discard()


def answering(files: ObjectFiles, operation: str, code: str, status: int) -> Callable[[], None]:
    """From now on the store answers an operation with an error. Returns what ends that."""
    body = f"<Error><Code>{code}</Code><Message>by the test</Message></Error>".encode()

    def answer(request: Any, **_: object) -> AWSResponse:
        return AWSResponse(request.url, status, {"content-type": "application/xml"}, Answer(body))

    event = f"before-send.s3.{operation}"
    files._client.meta.events.register(event, answer)
    return lambda: files._client.meta.events.unregister(event, answer)


def test_all_versions_and_unfinished_uploads_are_deleted(
    object_store: ObjectStore, files: ObjectFiles, url: str
) -> None:
    object_store.versioned(url)
    for content in (b"first", b"second"):
        stored(files, "spool/a", content)
    stored(files, "spool/b", b"stays")
    bucket, prefix = address(url)
    object_store.client.delete_object(Bucket=bucket, Key=f"{prefix}spool/a")
    object_store.client.create_multipart_upload(Bucket=bucket, Key=f"{prefix}spool/a")
    object_store.client.create_multipart_upload(Bucket=bucket, Key=f"{prefix}spool/c")
    assert not files.exists("spool/a")
    assert files.names() == ["spool/a", "spool/b", "spool/c"]
    files.delete(["spool/a", "spool/c"])
    assert files.names() == ["spool/b"]
    assert list(object_store.objects(url).values()) == [b"stays"]
    assert not object_store.unfinished(url)


def test_a_deletion_that_does_not_delete_is_an_error(files: ObjectFiles) -> None:
    stored(files, "spool/a", b"content")
    body = b"<DeleteResult/>"
    files._client.meta.events.register(
        "before-send.s3.DeleteObjects",
        lambda request, **_: AWSResponse(request.url, 200, {"content-type": "application/xml"}, Answer(body)),
    )
    with pytest.raises(Unavailable, match="still has federation/spool/a after its deletion"):
        files.delete(["spool/a"])


def test_a_bucket_that_keeps_what_is_deleted_is_refused(object_store: ObjectStore, tmp_path: Path) -> None:
    url = object_store.bucket()
    object_store.versioned(url)
    with pytest.raises(UsageError, match="keeps versions"):
        make_state(tmp_path / "state", tiny_config(), objects=url)
    object_store.versioned(url, "Suspended")
    ObjectFiles(url, tmp_path).refuse_keeping()
    locked = object_store.bucket(ObjectLockEnabledForBucket=True)
    with pytest.raises(UsageError, match="has object lock"):
        make_state(tmp_path / "state", tiny_config(), objects=locked)
    assert not (tmp_path / "state").exists()


def test_settings_that_cannot_be_read_are_refused_and_settings_that_do_not_exist_are_not(files: ObjectFiles) -> None:
    end = answering(files, "GetBucketVersioning", "AccessDenied", 403)
    with pytest.raises(Unavailable, match="needs the rights s3:GetBucketVersioning"):
        files.refuse_keeping()
    end()
    answering(files, "GetBucketVersioning", "NotImplemented", 501)
    answering(files, "GetObjectLockConfiguration", "NotImplemented", 501)
    answering(files, "ListObjectVersions", "NotImplemented", 501)
    files.refuse_keeping()
    stored(files, "spool/a", b"content")
    assert files.names() == ["spool/a"]
    files.delete(["spool/a"])
    assert files.names() == []


def test_a_prefix_with_objects_is_not_used_for_a_new_federation(
    object_store: ObjectStore, files: ObjectFiles, url: str, tmp_path: Path
) -> None:
    stored(files, "models/v000000-ab.safetensors", b"of another federation")
    with pytest.raises(UsageError, match="is not empty"):
        make_state(tmp_path / "state", tiny_config(), objects=url)
    assert object_store.keys(url) == ["models/v000000-ab.safetensors"]


@pytest.mark.parametrize("content", [b"a" * 100, b"b" * (PART + 1)], ids=["whole", "parts"])
def test_an_object_that_arrives_with_other_bytes_is_deleted(
    object_store: ObjectStore, files: ObjectFiles, url: str, content: bytes
) -> None:
    def longer(request: Any, **_: object) -> None:
        request.body = bytes(request.body.read() if hasattr(request.body, "read") else request.body) + b"!"
        request.headers["Content-Length"] = str(len(request.body))

    for operation in ("PutObject", "UploadPart"):
        files._client.meta.events.register(f"before-send.s3.{operation}", longer)
    with pytest.raises(Unavailable, match="other bytes than were sent"):
        stored(files, "spool/a", content)
    assert object_store.keys(url) == []


def test_a_store_without_checksums_is_read_back(files: ObjectFiles, object_store: ObjectStore, url: str) -> None:
    def plain(parsed: dict[str, Any], **_: object) -> None:
        parsed.pop("ChecksumSHA256", None)

    def changed(params: dict[str, Any], **_: object) -> None:
        params["body"] = b"other"

    files._client.meta.events.register("after-call.s3.HeadObject", plain)
    stored(files, "spool/a", b"right")
    assert object_store.keys(url) == ["spool/a"]
    files._client.meta.events.register("before-call.s3.PutObject", changed)
    with pytest.raises(Unavailable, match="other bytes than were sent"):
        stored(files, "spool/b", b"right")


@pytest.mark.parametrize("operation", ["UploadPart", "CompleteMultipartUpload"])
def test_a_refused_upload_leaves_nothing(
    object_store: ObjectStore, files: ObjectFiles, url: str, operation: str
) -> None:
    answering(files, operation, "QuotaExceeded", 403)
    with pytest.raises(Unavailable, match=r"refuses .*/spool/a: QuotaExceeded"):
        stored(files, "spool/a", b"c" * (2 * PART))
    assert object_store.keys(url) == []
    assert not object_store.unfinished(url)


def test_a_store_that_does_not_answer_is_unavailable_and_not_empty(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A port on which nothing listens.
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    files = ObjectFiles(url, tmp_path)
    for call in (files.refuse_keeping, files.names, lambda: files.exists("spool/a"), lambda: files.read("spool/a")):
        with pytest.raises(Unavailable, match="does not answer"):
            call()


def test_an_object_that_is_deleted_while_it_is_read(files: ObjectFiles) -> None:
    stored(files, "models/a", b"d" * 1000)
    with files.read("models/a") as source:
        files.delete(["models/a"])
        with pytest.raises(Unavailable, match="deleted while it was read"):
            source.read_into(0, memoryview(bytearray(10)))


def test_memory_does_not_grow_with_the_file(files: ObjectFiles) -> None:
    file, nbytes = files.new("models/a"), 80 << 20
    for _ in range(nbytes >> 20):
        file.write(bytes(1 << 20))
    stored(files, "spool/a", b"loads the library")
    tracemalloc.start()
    try:
        file.publish("models/a")
        with files.read("models/a") as source:
            assert sum(len(block) for block in source.blocks()) == nbytes
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < nbytes // 2, most


@pytest.mark.parametrize("wrong", ["s3://", "s3:///prefix", "s3://key:secret@bucket/p", "s3://bucket/p?x=1"])
def test_an_address_has_a_bucket_and_no_credentials(wrong: str) -> None:
    with pytest.raises(UsageError, match="s3://BUCKET/PREFIX"):
        address(wrong)


def test_addresses() -> None:
    assert address("s3://bucket") == ("bucket", "")
    assert address("s3://bucket/a/b/") == ("bucket", "a/b/")
