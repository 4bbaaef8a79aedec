"""The connection to an object store that speaks the S3 protocol: address, errors, and settings that it refuses.

Credentials, region, address and authority of the store come from the environment, a profile or the role of the machine, as
boto3 reads them. No command line and no file of the federation has them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from puf_common.errors import Unavailable, UsageError
from puf_common.logging import get_logger
from puf_common.network.addresses import is_loopback

_NOT_THERE = ("404", "NoSuchKey", "NoSuchUpload")
_NOT_OFFERED = ("NotImplemented", "MethodNotAllowed", "501", "405")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_RIGHTS = "s3:GetBucketVersioning and s3:GetBucketObjectLockConfiguration"
log = get_logger(__name__)


class StoreUnavailable(Unavailable, OSError):
    """The object store does not answer, or refuses. Nothing is known about its files; a caller may try again."""


def address(url: str) -> tuple[str, str]:
    """The bucket and the prefix of s3://BUCKET/PREFIX. The prefix is empty or ends with a slash."""
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
        raise UsageError(
            "s3://BUCKET/PREFIX is needed, without credentials: set those in the environment, see the page about files"
        )
    prefix = parts.path.strip("/")
    return parts.netloc, f"{prefix}/" if prefix else ""


def require_library() -> None:
    try:
        import boto3  # noqa: F401
    except ImportError as error:
        raise UsageError(f"files in an object store need boto3 ({error}); install puf-fl[s3]") from None


def connect() -> Any:
    """A client of the store, for all threads. Every call ends after bounded attempts and times."""
    require_library()
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    endpoint = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), "")
    config = Config(
        connect_timeout=5,
        read_timeout=30,
        retries={"mode": "standard", "total_max_attempts": 3},
        max_pool_connections=32,
        # Stores other than Amazon's seldom have a host name for each bucket.
        s3={"addressing_style": "path" if endpoint else "auto"},
        # Checksums are stated where files are written. Files are compared with their digests where they are read.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        client = boto3.client("s3", config=config, endpoint_url=endpoint or None)
    except (BotoCoreError, ValueError) as error:
        raise UsageError(f"the object store cannot be used: {error}") from None
    used = urlsplit(client.meta.endpoint_url)
    if used.scheme != "https" and not is_loopback(f"{used.hostname}:{used.port or 80}"):
        log.warning("the connection to the object store is not encrypted; use an https address", store=used.netloc)
    return client


@contextmanager
def reported(what: str) -> Iterator[None]:
    """Turns errors of the library into FileNotFoundError and StoreUnavailable. `what` is the file or the operation."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        yield
    except ClientError as error:
        code, message = code_of(error), error.response.get("Error", {}).get("Message", "")
        if code in _NOT_THERE:
            raise FileNotFoundError(2, "there is no such object", what) from None
        raise StoreUnavailable(f"the object store refuses {what}: {code} {message}".strip()) from error
    except NoCredentialsError as error:
        raise StoreUnavailable(
            "there are no credentials for the object store: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or "
            "give the machine a role"
        ) from error
    except BotoCoreError as error:
        raise StoreUnavailable(f"the object store does not answer ({what}): {error}") from error


def code_of(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def offered(call: Callable[[], Any]) -> Any:
    """The reply of a call that some stores do not offer; None where the store does not."""
    from botocore.exceptions import ClientError

    try:
        return call()
    except ClientError as error:
        if code_of(error) in _NOT_OFFERED:
            return None
        raise


def refuse_keeping(client: Any, bucket: str) -> None:
    """Raises where the bucket would keep deleted bytes: versioning, or object lock with its retention."""
    from botocore.exceptions import ClientError

    def object_lock() -> Any:
        try:
            return client.get_object_lock_configuration(Bucket=bucket)
        except ClientError as error:
            if code_of(error) == "ObjectLockConfigurationNotFoundError":
                return {}
            raise

    with reported(f"the settings of the bucket {bucket} (it needs the rights {_RIGHTS})"):
        versioning = offered(lambda: client.get_bucket_versioning(Bucket=bucket)) or {}
        lock = offered(object_lock) or {}
    if lock.get("ObjectLockConfiguration", {}).get("ObjectLockEnabled") == "Enabled":
        raise UsageError(
            f"the bucket {bucket} has object lock: it would keep the bytes of forgotten clients; use a bucket without it"
        )
    if versioning.get("Status") == "Enabled":
        raise UsageError(
            f"the bucket {bucket} keeps versions: it would keep the bytes of forgotten clients; suspend its versioning or use "
            "another bucket"
        )
