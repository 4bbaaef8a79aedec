"""`puf-lab list`, `plan`, `run` and `report`: the paper's experiments, and the user's own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from puf_common.config.parser import Parser

if TYPE_CHECKING:
    from puf_lab.experiments.jobs import Place
    from puf_lab.experiments.spec import Experiment

__all__ = ["add_experiments"]


def add_experiments(commands: Any) -> None:
    listing = commands.add_parser("list", help="the settings there are")
    listing.set_defaults(run=_list)

    plan = commands.add_parser("plan", help="how many runs, hours and bytes a setting means; runs nothing")
    _setting_flags(plan)
    plan.add_argument(
        "--seconds-per-round", type=float, metavar="S", help="instead of measuring one batch on this machine"
    )
    plan.set_defaults(run=_plan)

    run = commands.add_parser("run", help="run a setting, or what is missing of it, and measure")
    _setting_flags(run)
    run.add_argument("--out", type=Path, metavar="DIR", help="where results go (default runs/SETTING)")
    run.add_argument("--engine", default="in-process", metavar="NAME", help="in-process, processes or ray")
    run.add_argument("--ray-address", metavar="ADDRESS", help="an existing Ray cluster (default: a local one)")
    run.add_argument("--jobs", type=int, default=1, metavar="N", help="independent runs at a time (default 1)")
    run.add_argument(
        "--metric", action="append", default=[], metavar="MODULE:NAME", help="one more metric; may be repeated"
    )
    run.set_defaults(run=_run)

    report = commands.add_parser("report", help="tables and figures of one or more runs, as a page and as files")
    report.add_argument("runs", nargs="*", type=Path, metavar="DIR", help="results (default: everything in runs/)")
    report.add_argument("--out", type=Path, default=Path("runs/report"), metavar="DIR", help="where the report goes")
    report.set_defaults(run=_report)


def _setting_flags(parser: Parser) -> None:
    parser.add_argument("setting", metavar="SETTING", help="a name from `puf-lab list`, or FILE.toml")
    parser.add_argument("--profile", default="paper", metavar="NAME", help="paper (default) or author-code")
    parser.add_argument("--targets", metavar="I,J", help="who leaves: 0,3 in turn, 0+3 together")
    parser.add_argument("--methods", metavar="A,B", help='methods, e.g. "natural,puf-special eta_u=4 epochs=2"')
    parser.add_argument(
        "--method", action="append", default=[], metavar="MODULE:NAME", help="one more method; may be repeated"
    )
    parser.add_argument("--seeds", metavar="N,M", help="seeds, of data and training alike")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="where the dataset is")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="published checkpoint, for settings that need one")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu (default), cuda, cuda:1 or auto")
    parser.add_argument("--cache", type=Path, default=Path("runs/cache"), metavar="DIR", help="finished runs")


def _experiment(arguments: argparse.Namespace) -> Experiment:
    from puf_common.errors import UsageError
    from puf_lab.experiments.spec import load_experiment, target_sets

    experiment = load_experiment(arguments.setting, profile=arguments.profile)
    methods = arguments.methods.split(",") if arguments.methods else list(experiment.methods)
    try:
        seeds = [int(word) for word in arguments.seeds.split(",")] if arguments.seeds else None
    except ValueError:
        raise UsageError(f"--seeds {arguments.seeds} must be numbers like 1,2,3") from None
    return experiment.narrowed(
        targets=list(target_sets([arguments.targets])) if arguments.targets else None,
        methods=[word.strip() for word in methods] + arguments.method,
        seeds=seeds,
    )


def _place(arguments: argparse.Namespace, engine: str) -> Place:
    from puf_lab.experiments.jobs import Place

    directory = arguments.data_dir.resolve() if arguments.data_dir else None
    weights = arguments.weights.resolve() if arguments.weights else None
    return Place(data_dir=directory, device=arguments.device, engine=engine, weights=weights)


def _list(_: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from puf_lab.experiments.spec import load_experiment, names

    table = Table("setting", "what", "targets", "rounds", box=None, header_style="bold")
    table.columns[0].no_wrap = True
    for name in names():
        e = load_experiment(name)
        table.add_row(name, e.title, str(len(e.targets)), str(e.rounds))
    Console(highlight=False).print(table)
    return 0


def _plan(arguments: argparse.Namespace) -> int:
    from puf_lab.experiments.cache import Cache
    from puf_lab.experiments.estimate import show_plan

    return show_plan(
        _experiment(arguments), _place(arguments, "in-process"), Cache(arguments.cache), arguments.seconds_per_round
    )


def _run(arguments: argparse.Namespace) -> int:
    from puf_common.errors import UsageError
    from puf_lab.experiments.cache import Cache
    from puf_lab.experiments.runner import run_experiment
    from puf_lab.federations.base import ENGINES

    if arguments.engine not in ENGINES:
        raise UsageError(f"--engine {arguments.engine} must be one of {', '.join(ENGINES)}")
    experiment = _experiment(arguments)
    return run_experiment(
        experiment,
        arguments.out or Path("runs") / experiment.name,
        place=_place(arguments, arguments.engine),
        cache=Cache(arguments.cache.resolve()),
        jobs=arguments.jobs,
        metrics=arguments.metric,
        ray_address=arguments.ray_address,
    )


def _report(arguments: argparse.Namespace) -> int:
    from puf_lab.reporting.html import run_report

    return run_report(arguments.runs, arguments.out)
