"""Loses the unsynced writes of many killed servers and clients. Part of `make torture`; goes on where it stopped."""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from pathlib import Path

from tests.results import OUT, Results
from tests.unsynced.client_cut import ClientCut
from tests.unsynced.federation import Cut
from tests.unsynced.replay import compiled

_KILLS = 25


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.unsynced", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="SIGKILLs of servers in all (default 200)")
    parser.add_argument("--federations", type=int, default=1000, help="federations in this call (default: no limit)")
    parser.add_argument("--resume", action="store_true", help="continue the last run")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    results = Results(arguments.out / "result.json", "unsynced", resume=arguments.resume)
    with tempfile.TemporaryDirectory() as scratch:
        library = compiled(Path(scratch))
        if library is None:
            print("no C compiler: install gcc", file=sys.stderr)
            return 2
        (Path(scratch) / "reference").mkdir()
        digests = Cut(Path(scratch) / "reference", library, seed=0, kills=0).run()
        for _ in range(arguments.federations):
            done = sum(p["counts"]["server kills"] for p in results.parts)
            if done >= arguments.kills:
                break
            seed = len(results.parts) + 1
            _one(results, Path(scratch) / str(seed), library, seed, digests)
            print(f"{seed}: {results.parts[-1]['counts']} {results.parts[-1]['failure']}", flush=True)
    return 1 if any(p["failure"] for p in results.parts) else 0


def _one(results: Results, directory: Path, library: Path, seed: int, digests: list[str]) -> None:
    directory.mkdir()
    cut = Cut(directory, library, seed, _KILLS)
    client = ClientCut(directory, library, seed)
    failure = ""
    try:
        client.run()
        if cut.run() != digests:
            failure = "the models differ from those of a server that was never killed"
    except Exception:
        failure = traceback.format_exc()
    counts = {"server kills": cut.kills, "client kills": client.kills, "facts kept": len(cut.facts) + len(client.facts)}
    counts |= {"changes lost": cut.lost.total() + client.lost.total()}
    results.add(f"seed {seed}", seed=seed, counts=counts, failure=failure)


if __name__ == "__main__":
    sys.exit(main())
