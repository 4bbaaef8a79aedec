"""`puf-client fleet`: names, shards, exit codes and signals of many processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from puf_client.cli.fleet import members
from puf_client.options import FleetOptions
from puf_common.config.exit_codes import Exit

FLEET = """
import sys, time
from pathlib import Path
from puf_client.cli.fleet import run_fleet
from puf_client.options import FleetOptions

def run(member):
    Path(sys.argv[1], member.name).touch()
    print(f"{member.name} has {member.shard}")
    {body}

sys.exit(run_fleet(FleetOptions(clients=3, data="digits", log_dir=sys.argv[1] + "/logs"), run))
"""
# One process, because importing torch takes seconds: a fleet for each code that client-1 ends with.
FLEETS = """
import sys
from puf_client.cli.fleet import run_fleet
from puf_client.options import FleetOptions

for code in (10, 4):
    def run(member):
        print(f"{member.name} has {member.shard}")
        return code if member.name == "client-1" else 0

    print(int(run_fleet(FleetOptions(clients=3, data="digits", log_dir=f"{sys.argv[1]}/{code}"), run)))
"""


def fleet(tmp_path: Path, body: str) -> subprocess.Popen[bytes]:
    code = FLEET.replace("{body}", body)
    return subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stderr=subprocess.DEVNULL)


def wait_for(*paths: Path) -> None:
    for _ in range(1200):
        if all(path.exists() for path in paths):
            return
        time.sleep(0.05)
    raise AssertionError(f"missing: {paths}")


def test_members_have_names_and_shards() -> None:
    options = FleetOptions(clients=4, leave_out=[1], data="digits", server="x:1", log_dir=Path("logs"))
    fleet = members(options)
    assert [(m.name, m.shard) for m in fleet] == [
        ("client-0", "0/4"),
        ("client-2", "2/4"),
        ("client-3", "3/4"),
    ]
    assert all(m.server == "x:1" and m.data == "digits" for m in fleet)
    assert members(FleetOptions(clients=1, name="ward", data="d"))[0].name == "ward-0"


def test_the_exit_code_is_0_if_all_clients_ended_or_were_forgotten(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FLEETS, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == [str(Exit.OK.value), str(Exit.REFUSED.value)], done.stderr
    for code in (Exit.FORGOTTEN, Exit.REFUSED):
        for i in range(3):
            assert (tmp_path / str(code.value) / f"client-{i}.log").read_text() == f"client-{i} has {i}/3\n"


def test_signals_reach_every_client_and_the_fleet_waits_for_all(tmp_path: Path) -> None:
    process = fleet(
        tmp_path,
        "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); "
        "Path(sys.argv[1], 'up-' + member.name).touch(); time.sleep(60)",
    )
    wait_for(*(tmp_path / f"up-client-{i}" for i in range(3)))
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == Exit.INTERRUPTED
