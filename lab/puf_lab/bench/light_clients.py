"""Many light clients in one process: they join, send heartbeats and answer work. No torch, no threads.

    python -m puf_lab.bench.light_clients HOST:PORT[,HOST:PORT...] CLIENTS SECONDS

Clients are divided among the addresses.

Prints one line of JSON at the end: heartbeats, updates, errors by message, and the slowest heartbeat.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from grpc import aio

from puf_common.network.status import IDENTITY_KEY, channel_options
from puf_common.tensors.chunks import chunks
from puf_common.tensors.digests import digest
from puf_common.tensors.manifest import UPDATE, Manifest
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import federation_pb2_grpc as rpc

# Connections that are made at a time. A real fleet does not start within one second either.
_STARTING = 50
_JOINING_SECONDS = 120.0


@dataclass
class _Tally:
    joined: int = 0
    beats: int = 0
    updates: int = 0
    slowest_beat: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)


async def _client(address: str, name: str, tally: _Tally, starting: asyncio.Semaphore, until: list[float]) -> None:
    async with aio.insecure_channel(address, options=channel_options(address)) as channel:
        stub: Any = rpc.FederationStub(channel)
        call = {"metadata": ((IDENTITY_KEY, name),), "timeout": 90.0}
        async with starting:
            described = await stub.Describe(fed.DescribeRequest(), **call)
            manifest = Manifest.from_pb(described.manifest)
            joined = await stub.Join(
                fed.JoinRequest(
                    instance=secrets.token_hex(8),
                    samples=1,
                    manifest_fingerprint=manifest.fingerprint,
                    recipe_fingerprint=described.recipe.fingerprint,
                ),
                **call,
            )
        tally.joined += 1

        async def beat() -> None:
            while True:
                await asyncio.sleep(joined.heartbeat_seconds)
                begun = time.monotonic()
                await stub.Heartbeat(fed.HeartbeatRequest(session=joined.session), **call)
                tally.beats += 1
                tally.slowest_beat = max(tally.slowest_beat, time.monotonic() - begun)

        beating = asyncio.create_task(beat())
        payload = np.full(manifest.nbytes(UPDATE) // 4, secrets.randbelow(1000) / 1e6, "<f4").tobytes()
        try:
            while time.monotonic() < until[0]:
                wait = fed.WaitForWorkRequest(session=joined.session, timeout_seconds=20.0)
                reply = await stub.WaitForWork(wait, **call)
                if reply.WhichOneof("work") == "leave":
                    return
                if reply.WhichOneof("work") == "train":
                    await _train(stub, manifest, reply.train, payload, call)
                    tally.updates += 1
                if beating.done():
                    await beating
        finally:
            beating.cancel()


async def _train(stub: Any, manifest: Manifest, work: fed.TrainWork, payload: bytes, call: dict[str, Any]) -> None:
    async for _ in stub.FetchModel(fed.FetchModelRequest(version=work.base_version), **call):
        pass
    header = fed.UpdateHeader(
        key=work.key,
        base_version=work.base_version,
        samples=work.samples or 1,
        applied_scale=1.0,
        byte_length=len(payload),
        digest=digest(payload),
        manifest_fingerprint=manifest.fingerprint,
    )

    async def frames() -> Any:
        yield fed.SubmitUpdateRequest(header=header)
        for chunk in chunks(payload):
            yield fed.SubmitUpdateRequest(chunk=chunk)

    await stub.SubmitUpdate(frames(), **call)


async def _run(addresses: list[str], clients: int, seconds: float) -> _Tally:
    tally, starting, until = _Tally(), asyncio.Semaphore(_STARTING), [time.monotonic() + _JOINING_SECONDS + seconds]

    async def counted(number: int) -> None:
        address, name = addresses[number % len(addresses)], f"light-{number:04d}"
        try:
            await _client(address, name, tally, starting, until)
        except aio.AioRpcError as error:
            tally.errors[f"{error.code().name}: {error.details()}"] += 1

    tasks = [asyncio.create_task(counted(i)) for i in range(clients)]
    while tally.joined + sum(tally.errors.values()) < clients and time.monotonic() < until[0]:
        await asyncio.sleep(0.1)
    until[0] = time.monotonic() + seconds
    await asyncio.gather(*tasks)
    return tally


def main(addresses: str, clients: int, seconds: float) -> int:
    tally = asyncio.run(_run(addresses.split(","), clients, seconds))
    print(json.dumps({**vars(tally), "errors": dict(tally.errors)}))  # noqa: T201
    return 0 if not tally.errors else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
