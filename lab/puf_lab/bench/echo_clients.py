"""A client that fetches and submits in every round, without training. Each client sends different bytes.

python -m puf_lab.bench.echo_clients HOST:PORT NAME,NAME [CA CERTIFICATE KEY]

Several clients share the process, with one thread each: a hundred processes would not fit into a small machine's memory.
"""

from __future__ import annotations

import secrets
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from puf_client.session.assignment import Assignment
from puf_client.session.connect import connect
from puf_client.session.settings import Offer
from puf_common.config.exit_codes import Exit
from puf_common.logging import configure
from puf_common.malloc import keep_freed_memory
from puf_common.network.tls import ClientTls
from puf_common.tensors.manifest import UPDATE
from puf_common.v1 import federation_pb2 as fed


def main(address: str, names: str, *files: str) -> int:
    configure(level="error")
    keep_freed_memory()  # as puf-client does
    with ThreadPoolExecutor(names.count(",") + 1) as pool:
        return max(pool.map(lambda name: _work(address, name, *files), names.split(",")))


def _work(address: str, name: str, *files: str) -> int:
    ca, certificate, key = (Path(file) for file in files) if files else (None, None, None)
    tls = ClientTls.load(ca, certificate, key) if ca else None
    with connect(address, Offer(samples=1), name=name, tls=tls) as session:
        noise = np.frombuffer(secrets.token_bytes(4096), np.uint8).astype("<f4") / 1e6
        update = np.resize(noise, session.manifest.nbytes(UPDATE) // 4).tobytes()
        for work in session:
            if isinstance(work, Assignment):
                work.submit(update)
                # The model is not needed for training. Its memory serves the next one.
                session.drop_models()
        ended = session.leave is not None and session.leave.reason != fed.LeaveOrder.REASON_UNSPECIFIED
        return Exit.OK if ended else Exit.FAILURE


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
