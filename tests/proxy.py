"""A TCP proxy on loopback that cuts or stalls a connection after a chosen number of bytes, in a chosen direction."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Direction", "Proxy", "Strike", "proxied"]

Direction = Literal["up", "down"]
_PIECE = 1 << 16


@dataclass
class Strike:
    """A fault that happens once, after this many bytes in this direction since it was armed."""

    direction: Direction
    after: int
    # Cut: both ends see a reset. Stall: no byte passes for some time, then all do.
    action: Literal["cut", "stall"] = "cut"
    seconds: float = 0.0
    also: Callable[[], None] = lambda: None


@dataclass
class Proxy:
    """Passes bytes on to `target` and counts them. Every `arm` causes one fault."""

    target: int
    port: int = 0
    counted: dict[Direction, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    struck: int = 0
    _strike: Strike | None = None

    def arm(self, strike: Strike | None) -> None:
        self.counted = {"up": 0, "down": 0}
        self._strike = strike

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        ends = (writer.transport, back.transport)
        ways = [
            asyncio.create_task(self._pass(reader, back, "up", ends)),
            asyncio.create_task(self._pass(there, writer, "down", ends)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for end in ends:
                end.abort()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        direction: Direction,
        ends: tuple[asyncio.WriteTransport, ...],
    ) -> None:
        while data := await reader.read(_PIECE):
            strike = self._strike
            if strike is not None and strike.direction == direction:
                left = strike.after - self.counted[direction]
                if left < len(data):
                    # Exact to the byte: bytes before this point pass, later ones do not.
                    writer.write(data[: max(0, left)])
                    await writer.drain()
                    data = data[max(0, left) :]
                    self.counted[direction] += max(0, left)
                    self._strike = None
                    self.struck += 1
                    strike.also()
                    if strike.action == "cut":
                        for end in ends:
                            end.abort()
                        return
                    await asyncio.sleep(strike.seconds)
            self.counted[direction] += len(data)
            writer.write(data)
            await writer.drain()
        writer.transport.abort()


@contextmanager
def proxied(target: int) -> Iterator[Proxy]:
    """A proxy to a port of this machine, in a separate thread."""
    proxy = Proxy(target)
    ready, loop = threading.Event(), asyncio.new_event_loop()
    ending = asyncio.Event()

    async def serve() -> None:
        server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0, family=socket.AF_INET)
        proxy.port = server.sockets[0].getsockname()[1]
        ready.set()
        await ending.wait()
        server.close()
        # Open connections are aborted.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        # The loop closes aborted connections in its next turn.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="proxy")
    thread.start()
    assert ready.wait(20)
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join(20)
        loop.close()
        assert not thread.is_alive()
