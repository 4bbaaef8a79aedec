"""A FLARE job in the real simulator, as a program: WORKSPACE OUT MODE. Runs in FLARE's environment."""

from __future__ import annotations

import sys
from pathlib import Path

from integrations.tests.flare_server import SavedFedAvg
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType
from nvflare.job_config.script_runner import FrameworkType, ScriptRunner

from puf_flare.aggregator import PufAggregator
from puf_flare.filters import NegateFilter

SITES, ROUNDS, LEAVES = 3, 8, 4


def main(workspace: str, out: str, mode: str) -> None:
    job = FedJob(name="puf", min_clients=SITES)
    job.to_server(SavedFedAvg(out, num_clients=SITES, num_rounds=ROUNDS, aggregator=PufAggregator(mode)))
    script = str(Path(__file__).with_name("flare_client.py"))
    for i in range(SITES):
        site = f"site-{i}"
        job.to(ScriptRunner(script=script, script_args=str(i), framework=FrameworkType.NUMPY), site)
    job.to(NegateFilter(in_round=LEAVES), "site-1", tasks=["train"], filter_type=FilterType.TASK_RESULT)
    job.simulator_run(workspace, threads=SITES)


if __name__ == "__main__":
    main(*sys.argv[1:])
