"""`make torture`, second part: the same attacks for longer, from many seeds. Prints the seed that broke something."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.rig import fuzz
from tests.pki import Pki


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="federations to attack (default 20)")
    parser.add_argument("--first", type=int, default=1000, help="the first seed (default 1000)")
    parser.add_argument("--cases", type=int, default=2000, help="attacks of each kind per federation (default 2000)")
    arguments = parser.parse_args()
    total: Counter[str] = Counter()
    started = time.monotonic()
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        with tempfile.TemporaryDirectory() as directory:
            here = Path(directory)
            try:
                if seed % 3:
                    total += fuzz(here / "state", seed, arguments.cases)
                else:
                    pki = Pki(here / "pki")
                    total += fuzz(here / "state", seed, arguments.cases // 4, tls=pki.server_tls(), as_=pki.client)
            except AssertionError as failure:
                print(f"FAILED with seed {seed}: {failure}", file=sys.stderr)
                return 1
        print(f"{time.monotonic() - started:6.0f} s  seed {seed}: {total.total()} calls answered", flush=True)
    print(f"passed: {dict(total)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
