"""`puf-lab list`, `plan`, `run` and `report`: experiments of the paper and of the user."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from puf_common.config.parser import Parser

if TYPE_CHECKING:
    from puf_lab.spec.experiment import ExperimentSpec

# Repeated here, because importing their modules would delay `--help`.
_FEDERATIONS = ("in-process", "processes")
_EXECUTORS = ("local", "pool", "ray")
# `--engine` of version 0.1.0 in terms of the two flags that replace it.
_ENGINES = {"in-process": ("in-process", None), "processes": ("processes", None), "ray": ("in-process", "ray")}


def add_experiments(commands: Any) -> None:
    listing = commands.add_parser("list", help="list the built-in settings")
    listing.set_defaults(run=_list)

    plan = commands.add_parser("plan", help="show the runs, hours and bytes of a setting; runs nothing")
    plan.add_argument("setting", metavar="SETTING", help="a name from `puf-lab list`, or FILE.toml")
    _setting_flags(plan)
    plan.add_argument(
        "--seconds-per-round",
        type=float,
        metavar="S",
        help="use this figure instead of a measurement on this machine; hours are then without measuring",
    )
    plan.set_defaults(run=_plan)

    run = commands.add_parser("run", help="run a setting, or what is missing of it, and measure")
    run.add_argument("setting", metavar="SETTING", help="a name from `puf-lab list`, or FILE.toml")
    _setting_flags(run)
    _run_flags(run)
    run.add_argument("--goals", action="store_true", help="fail if forgetting misses the setting's goals")
    run.set_defaults(run=_run)

    _add_smoke(commands)
    _add_tune(commands)

    quality = commands.add_parser("quality", help="run the quality settings and say which goals are met")
    quality.add_argument(
        "--settings", metavar="A,B", help="only these, e.g. digits,digits-two or FILE.toml (default: all built-in)"
    )
    quality.add_argument("--methods", metavar="A,B", help="methods instead of those of the settings")
    quality.add_argument("--targets", type=int, metavar="N", help="at most N targets of each setting")
    quality.add_argument("--seeds", type=int, metavar="N", help="at most N seeds of each setting")
    quality.add_argument(
        "--out", type=Path, default=Path("runs/quality"), metavar="DIR", help="directory of the results"
    )
    _machine_flags(quality)
    _executor_flags(quality)
    quality.set_defaults(run=_quality)

    report = commands.add_parser("report", help="write tables and figures of one or more runs, as a page and as files")
    report.add_argument("runs", nargs="*", type=Path, metavar="DIR", help="results (default: everything in runs/)")
    report.add_argument("--out", type=Path, default=Path("runs/report"), metavar="DIR", help="directory of the report")
    report.set_defaults(run=_report)


def _add_smoke(commands: Any) -> None:
    smoke = commands.add_parser(
        "smoke", help="try every method of the full-size settings on synthetic data, two rounds"
    )
    smoke.add_argument("--settings", metavar="A,B", help="only these settings (default: all full-size ones)")
    smoke.add_argument("--device", default="cpu", metavar="NAME", help="cpu (default), cuda, cuda:1 or auto")
    smoke.add_argument("--samples", type=int, default=32, metavar="N", help="samples per client (default 32)")
    smoke.add_argument(
        "--out",
        type=Path,
        default=Path("runs/smoke"),
        metavar="DIR",
        help="runs until all are done (default runs/smoke)",
    )
    smoke.set_defaults(run=_smoke)


def _add_tune(commands: Any) -> None:
    tune = commands.add_parser("tune", help="sweep the parameters of methods on seeds that are not reported")
    tune.add_argument("setting", metavar="SETTING", help="a name from `puf-lab list`, or FILE.toml, with [tuning]")
    tune.add_argument("--methods", metavar="A,B", help="methods of the grid (default: all that the setting compares)")
    tune.add_argument("--profile", default="paper", metavar="NAME", help="paper (default) or author-code")
    tune.add_argument(
        "--out", type=Path, metavar="DIR", help="directory of rows and values (default runs/tune/SETTING)"
    )
    tune.add_argument("--weights", type=Path, metavar="FILE", help="published checkpoint, for settings that need one")
    _machine_flags(tune)
    _executor_flags(tune)
    tune.set_defaults(run=_tune)


def _setting_flags(parser: Parser) -> None:
    parser.add_argument("--profile", default="paper", metavar="NAME", help="paper (default) or author-code")
    parser.add_argument("--targets", metavar="I,J", help="clients that are forgotten: 0,3 in turn, 0+3 together")
    parser.add_argument("--methods", metavar="A,B", help='methods, e.g. "natural,puf-special eta_u=4 epochs=2"')
    parser.add_argument(
        "--method", action="append", default=[], metavar="MODULE:NAME", help="a further method; may be repeated"
    )
    parser.add_argument(
        "--seeds", metavar="N,M", help="seeds of training; also of data and initial weights unless these are given"
    )
    parser.add_argument("--data-seed", type=int, metavar="N", help="seed of the data (default: the run's seed)")
    parser.add_argument("--init-seed", type=int, metavar="N", help="seed of the initial weights (default: the run's)")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="published checkpoint, for settings that need one")
    _machine_flags(parser)


def _machine_flags(parser: Parser) -> None:
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="directory of the dataset")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu (default), cuda, cuda:1 or auto")
    parser.add_argument("--cache", type=Path, default=Path("runs/cache"), metavar="DIR", help="cache of finished runs")


def _run_flags(run: Parser) -> None:
    run.add_argument("--out", type=Path, metavar="DIR", help="directory of the results (default runs/SETTING)")
    run.add_argument(
        "--federation",
        choices=_FEDERATIONS,
        help="how a federation runs: in this process (default), or as server and client processes",
    )
    _executor_flags(run)
    run.add_argument("--engine", choices=tuple(_ENGINES), help=argparse.SUPPRESS)
    run.add_argument(
        "--metric", action="append", default=[], metavar="MODULE:NAME", help="a further metric; may be repeated"
    )


def _executor_flags(run: Parser) -> None:
    run.add_argument(
        "--durability",
        choices=("none", "full"),
        help="a federation in this process keeps updates in memory and syncs no file (none, the default), or stores "
        "everything as a server does (full)",
    )
    run.add_argument(
        "--executor",
        choices=_EXECUTORS,
        help="where runs execute: local, one after the other (default); pool, in several processes; ray, on a cluster",
    )
    run.add_argument("--jobs", type=int, metavar="N", help="runs at a time; N above 1 implies --executor pool")
    run.add_argument("--ray-address", metavar="ADDRESS", help="existing Ray cluster (default: a local one)")


def _experiment(arguments: argparse.Namespace, kind: str = "in-process") -> ExperimentSpec:
    """The experiment that the flags describe, with everything that its runs need to know."""
    from puf_common.errors import UsageError
    from puf_lab.spec.experiment import target_sets
    from puf_lab.spec.settings_files import load_experiment

    experiment = load_experiment(arguments.setting, profile=arguments.profile)
    methods = arguments.methods.split(",") if arguments.methods else list(experiment.methods)
    try:
        seeds = [int(word) for word in arguments.seeds.split(",")] if arguments.seeds else None
    except ValueError:
        raise UsageError(f"--seeds {arguments.seeds} must be numbers like 1,2,3") from None
    narrowed = experiment.narrowed(
        targets=list(target_sets([arguments.targets])) if arguments.targets else None,
        methods=[word.strip() for word in methods] + arguments.method,
        seeds=seeds,
        data_seed=arguments.data_seed,
        init_seed=arguments.init_seed,
    )
    return narrowed.placed(
        kind=kind,
        device=arguments.device,
        data_dir=arguments.data_dir.resolve() if arguments.data_dir else None,
        weights=arguments.weights.resolve() if arguments.weights else None,
    )


def _durability(arguments: argparse.Namespace) -> dict[str, str]:
    """The field of the federation that the flag changes. Without the flag the setting decides."""
    return {"durability": arguments.durability} if arguments.durability else {}


def _list(_: argparse.Namespace) -> int:
    from rich.table import Table

    from puf_lab.reporting.terminal import new_console
    from puf_lab.spec.settings_files import load_experiment, names

    table = Table("setting", "what", "targets", "rounds", box=None, header_style="bold")
    table.columns[0].no_wrap = True
    for name in names():
        e = load_experiment(name)
        table.add_row(name, e.title, str(len(e.targets)), str(e.federation.rounds))
    new_console().print(table)
    return 0


def _plan(arguments: argparse.Namespace) -> int:
    from puf_lab.experiments.cache import Cache
    from puf_lab.experiments.estimate import show_plan

    return show_plan(_experiment(arguments), Cache(arguments.cache), arguments.seconds_per_round)


def _run(arguments: argparse.Namespace) -> int:
    from puf_common.errors import UsageError
    from puf_lab.experiments.cache import Cache
    from puf_lab.experiments.executors import ExecutorOptions
    from puf_lab.experiments.runner import run_experiment

    if arguments.engine and (arguments.federation or arguments.executor):
        raise UsageError("--engine is replaced by --federation and --executor; leave it out")
    kind, executor = _ENGINES.get(arguments.engine, (arguments.federation or "in-process", arguments.executor))
    if kind == "processes" and arguments.durability == "none":
        raise UsageError("server and client processes always sync their files; leave out --durability none")
    experiment = _experiment(arguments, kind).placed(**_durability(arguments))
    return run_experiment(
        experiment,
        arguments.out or Path("runs") / experiment.name,
        cache=Cache(arguments.cache.resolve()),
        options=ExecutorOptions.of(executor, arguments.jobs, arguments.ray_address),
        metrics=arguments.metric,
        goals=arguments.goals,
    )


def _smoke(arguments: argparse.Namespace) -> int:
    from puf_lab.experiments.smoke import run_smoke

    settings = arguments.settings.split(",") if arguments.settings else ()
    return run_smoke(settings, arguments.out, device=arguments.device, samples=max(2, arguments.samples))


def _tune(arguments: argparse.Namespace) -> int:
    from puf_lab.experiments.cache import Cache
    from puf_lab.experiments.executors import ExecutorOptions
    from puf_lab.experiments.tune import run_tuning
    from puf_lab.spec.settings_files import load_experiment

    experiment = load_experiment(arguments.setting, profile=arguments.profile)
    placed = experiment.placed(
        device=arguments.device,
        data_dir=arguments.data_dir.resolve() if arguments.data_dir else None,
        weights=arguments.weights.resolve() if arguments.weights else None,
        **_durability(arguments),
    )
    return run_tuning(
        placed,
        arguments.out or Path("runs/tune") / experiment.name,
        methods=arguments.methods.split(",") if arguments.methods else (),
        cache=Cache(arguments.cache.resolve()),
        options=ExecutorOptions.of(arguments.executor, arguments.jobs, arguments.ray_address),
    )


def _quality(arguments: argparse.Namespace) -> int:
    from puf_lab.experiments.cache import Cache
    from puf_lab.experiments.executors import ExecutorOptions
    from puf_lab.experiments.quality import QualityOptions, run_quality

    return run_quality(
        QualityOptions(
            settings=arguments.settings.split(",") if arguments.settings else (),
            methods=arguments.methods.split(",") if arguments.methods else (),
            targets=arguments.targets,
            seeds=arguments.seeds,
        ),
        arguments.out,
        place={
            "device": arguments.device,
            "data_dir": arguments.data_dir.resolve() if arguments.data_dir else None,
            **_durability(arguments),
        },
        cache=Cache(arguments.cache.resolve()),
        options=ExecutorOptions.of(arguments.executor, arguments.jobs, arguments.ray_address),
    )


def _report(arguments: argparse.Namespace) -> int:
    from puf_lab.reporting.html import run_report

    return run_report(arguments.runs, arguments.out)
