"""A slow, lossy link between two network namespaces: python bad_line.py OTHER_PID DELAY_SECONDS LOSS

It starts in one namespace and moves to that of OTHER_PID. The device is `cable` in the first and `end` in the second.
Every packet arrives DELAY_SECONDS later, or is lost with probability LOSS. The kernel's netem does the same, but not
every kernel has it.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import random
import struct
import sys

_TUNSETIFF = 0x400454CA
_TUN_WITHOUT_HEADER = 0x0001 | 0x1000
_PACKET = 65536


def plug(name: str) -> int:
    """A network device in the namespace of this thread. Its packets are read from and written to the descriptor."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH14x", name.encode(), _TUN_WITHOUT_HEADER))
    return device


def move_to(pid: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/net", "rb") as namespace:
        if libc.setns(namespace.fileno(), 0):
            raise OSError(ctypes.get_errno(), "setns")


class Line:
    def __init__(self, delay: float, loss: float) -> None:
        self._delay = delay
        self._loss = loss
        # Seeded: the same packets are lost in every run, if they arrive in the same order.
        self._chance = random.Random(1)

    def join(self, near: int, far: int) -> None:
        loop = asyncio.get_running_loop()
        for source, sink in ((near, far), (far, near)):
            loop.add_reader(source, self._carry, loop, source, sink)

    def _carry(self, loop: asyncio.AbstractEventLoop, source: int, sink: int) -> None:
        packet = os.read(source, _PACKET)
        if self._chance.random() < self._loss:
            print("lost", flush=True)
        else:
            loop.call_later(self._delay, os.write, sink, packet)


async def main(pid: str, delay: float, loss: float) -> None:
    near = plug("cable")
    move_to(pid)
    far = plug("end")
    Line(delay, loss).join(near, far)
    print("joined", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))
