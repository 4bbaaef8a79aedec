"""A long, lossy line between two network namespaces: python bad_line.py OTHER_PID DELAY_SECONDS LOSS

Started in the one, it ends in the other, which OTHER_PID is in: `cable` here, `end` there. Every packet arrives DELAY_SECONDS
later or, with probability LOSS, never. The kernel's own netem would do the same where it is built in.
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
    """A network device in the namespace of this thread, whose packets are read and written here."""
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
        # Not security: the same packets are lost in every run, as far as they come in the same order.
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
