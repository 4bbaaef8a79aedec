"""`puf-lab`: experiments on the product's own code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from puf_common.config.command import guarded
from puf_common.config.parser import Parser
from puf_lab.cli.experiments import add_experiments

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    return guarded(lambda: _main(sys.argv[1:] if argv is None else list(argv)))


def _main(argv: list[str]) -> int:
    arguments = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    return run(arguments)


def _parser() -> Parser:
    parser = Parser(prog="puf-lab", description="Experiments with federations that forget.")
    parser.add_version()
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=Parser)

    demo = commands.add_parser(
        "demo", help="real processes learn together, one is forgotten; a table, a picture, a verdict"
    )
    demo.add_argument("--out", type=Path, default=Path("runs/demo"), metavar="DIR", help="where results go")
    demo.add_argument("--target", type=int, default=3, metavar="I", help="which client leaves (default 3)")
    demo.add_argument("--mode", choices=["regular", "special"], default="regular", help="how it is forgotten")
    demo.set_defaults(run=_demo)

    quality = commands.add_parser(
        "quality", help="how well forgetting works on the demo's setting, over several targets"
    )
    quality.add_argument("--out", type=Path, default=Path("runs/quality"), metavar="DIR", help="where results go")
    quality.add_argument(
        "--targets", type=_shards, default="0,1,2,3,4", metavar="I,J", help="clients that leave, in turn"
    )
    quality.set_defaults(run=_quality)

    add_experiments(commands)

    bench = commands.add_parser("bench", help="speed, memory and growth against the machine's limits and against peers")
    bench.add_argument("--out", type=Path, default=Path("runs/bench"), metavar="DIR", help="where results go")
    bench.add_argument("--only", default="", metavar="PART,PART", help="measure these parts; others keep their figures")
    bench.add_argument("--all", action="store_true", help="also what takes long to install: NVIDIA FLARE")
    bench.add_argument("--repeats", type=int, default=5, metavar="N", help="turns of each measurement (default 5)")
    bench.set_defaults(run=_bench)
    return parser


def _shards(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must be numbers like 0,3,5") from None


def _demo(arguments: argparse.Namespace) -> int:
    from puf_common.errors import UsageError
    from puf_lab.demo.run import run_demo
    from puf_lab.experiments.setting import DEMO

    if not 0 <= arguments.target < DEMO.clients:
        raise UsageError(f"--target must lie between 0 and {DEMO.clients - 1}")
    return run_demo(arguments.out, target=arguments.target, mode=arguments.mode)


def _quality(arguments: argparse.Namespace) -> int:
    from puf_common.errors import UsageError
    from puf_lab.experiments.quality import run_quality
    from puf_lab.experiments.setting import DEMO

    targets = arguments.targets
    if len(set(targets)) != len(targets) or not all(0 <= t < DEMO.clients for t in targets) or len(targets) < 3:
        raise UsageError(
            f"--targets must be at least three different numbers from 0 to {DEMO.clients - 1}: one proves nothing"
        )
    return run_quality(arguments.out, arguments.targets)


def _bench(arguments: argparse.Namespace) -> int:
    from puf_lab.bench import ALL, USUAL, run_bench

    parts = arguments.only.split(",") if arguments.only else ALL if arguments.all else USUAL
    return run_bench(arguments.out, parts=parts, repeats=max(1, arguments.repeats))
