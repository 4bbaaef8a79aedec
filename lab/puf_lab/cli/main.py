"""`puf-lab`: the demo, experiments and the bench."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from puf_common.config.command import guarded
from puf_common.config.parser import Parser
from puf_lab.cli.experiments import add_experiments


def main(argv: Sequence[str] | None = None) -> int:
    return guarded(lambda: _main(sys.argv[1:] if argv is None else list(argv)))


def _main(argv: list[str]) -> int:
    arguments = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    return run(arguments)


def _parser() -> Parser:
    parser = Parser(prog="puf-lab", description="Experiments with federations that forget.")
    parser.add_version()
    parser.add_completion(_parser)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=Parser)

    demo = commands.add_parser(
        "demo", help="train a federation of processes, forget one client, and show a table, a picture and a verdict"
    )
    demo.add_argument("--out", type=Path, default=Path("runs/demo"), metavar="DIR", help="directory of the results")
    demo.add_argument("--target", type=int, default=3, metavar="I", help="client that is forgotten (default 3)")
    demo.add_argument("--mode", choices=["regular", "special"], default="regular", help="mode of PUF")
    demo.set_defaults(run=_demo)

    add_experiments(commands)

    bench = commands.add_parser("bench", help="measure speed, memory and growth; compare with peers")
    bench.add_argument("--out", type=Path, default=Path("runs/bench"), metavar="DIR", help="directory of the results")
    bench.add_argument("--only", default="", metavar="PART,PART", help="measure these parts; others keep their figures")
    bench.add_argument("--all", action="store_true", help="include NVIDIA FLARE, which takes long to install")
    bench.add_argument("--repeats", type=int, default=5, metavar="N", help="repeats of each measurement (default 5)")
    bench.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="directory of CIFAR-100, which the part encoding then measures, too",
    )
    bench.set_defaults(run=_bench)
    return parser


def _demo(arguments: argparse.Namespace) -> int:
    from puf_lab.demo.run import run_demo

    return run_demo(arguments.out, target=arguments.target, mode=arguments.mode)


def _bench(arguments: argparse.Namespace) -> int:
    from puf_lab.bench.run import ALL, USUAL, run_bench

    parts = arguments.only.split(",") if arguments.only else ALL if arguments.all else USUAL
    data_dir = arguments.data_dir.resolve() if arguments.data_dir else None
    return run_bench(arguments.out, parts=parts, repeats=max(1, arguments.repeats), data_dir=data_dir)
