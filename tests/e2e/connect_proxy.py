"""An HTTP CONNECT proxy with latency: python connect_proxy.py HOST:PORT DELAY_SECONDS."""

from __future__ import annotations

import asyncio
import contextlib
import sys


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    """Passes all blocks in order, each `delay` later. The bandwidth is not limited."""
    loop = asyncio.get_running_loop()
    blocks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=64)

    async def read() -> None:
        with contextlib.suppress(OSError):
            while block := await reader.read(65536):
                await blocks.put((loop.time() + delay, block))
        await blocks.put((0.0, b""))

    reading = asyncio.create_task(read())
    with contextlib.suppress(OSError):
        while True:
            at, block = await blocks.get()
            if not block:
                break
            await asyncio.sleep(at - loop.time())
            writer.write(block)
            await writer.drain()
    reading.cancel()
    writer.close()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    request = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").split()
    if request[0] != "CONNECT":
        writer.write(b"HTTP/1.1 405 Method Not Allowed\r\n\r\n")
        writer.close()
        return
    host, _, port = request[1].rpartition(":")
    try:
        far_reader, far_writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except OSError:
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
        writer.close()
        return
    print(f"CONNECT {request[1]}", flush=True)
    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    await asyncio.gather(_carry(reader, far_writer, delay), _carry(far_reader, writer, delay))


async def main(address: str, delay: float) -> None:
    host, _, port = address.rpartition(":")
    server = await asyncio.start_server(lambda r, w: _serve(r, w, delay), host, int(port))
    print("listening", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
