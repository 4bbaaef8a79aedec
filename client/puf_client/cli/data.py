"""`puf-client data list | used | exclude`: ids and groups, their usage, and forgotten samples after a lost directory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.table import Table

from puf_client.options import DataOptions
from puf_client.state.directory import StateDirectory
from puf_client.state.usage import SampleUsage, Used
from puf_client.terminal import console
from puf_client.transport.dial import dial
from puf_client.unlearning import sample_list
from puf_client.unlearning.name_again import name_again
from puf_common.config.exit_codes import Exit
from puf_common.errors import UsageError


def run_data(options: DataOptions, action: str, names: Sequence[str], as_json: bool) -> Exit:
    """Runs `list`, `used` with sample ids, or `exclude` with one ticket."""
    if action == "list":
        if names:
            raise UsageError("list takes no names: it prints all samples; `used` takes ids")
        return _list(options, as_json)
    if not names:
        raise UsageError("used needs the ids of samples, exclude needs a ticket")
    if action == "used":
        return _used(options, names, as_json)
    if len(names) != 1:
        raise UsageError("exclude takes one ticket at a time")
    return _exclude(options, names[0])


def _list(options: DataOptions, as_json: bool) -> Exit:
    """Prints all ids and groups. With a client's name, also how each federation used them. Uses no network."""
    if not options.data:
        raise UsageError("no data is named: set --data, as for `puf-client run`")
    from puf_client.data import load_data
    from puf_client.worker.trainer import context_of

    data = load_data(options.data, context_of(options))
    groups = [""] * data.samples if data.groups is None else list(data.groups)
    found: list[tuple[str, StateDirectory | None]] = []
    if options.name:
        found.extend(StateDirectory.all_of(options.name, options.state))
    rows: list[dict[str, object]] = []
    for federation, state in found or [("", None)]:
        usage = SampleUsage(state).look_up_all(data.ids) if state is not None else [None] * data.samples
        gone = state.excluded(data.ids).tolist() if state is not None else [False] * data.samples
        whole = state is not None and state.forgotten is not None
        for sample, group, used, excluded in zip(data.ids, groups, usage, gone, strict=True):
            row: dict[str, object] = {"id": sample, "group": group or None}
            if state is not None:
                rounds = used or Used()
                word = "forgotten" if excluded or whole else "in training" if rounds.trained else "not used yet"
                row |= {"federation": federation, "status": word, **asdict(rounds)}
            rows.append(row)
    _print_rows(rows, as_json=as_json, grouped=data.groups is not None, known=bool(found))
    return Exit.OK


def _print_rows(rows: Sequence[Mapping[str, object]], *, as_json: bool, grouped: bool, known: bool) -> None:
    out = console()
    if as_json:
        out.print(json.dumps(rows, indent=1), soft_wrap=True)
        return
    columns = ["id", *(["group"] if grouped else []), *(["federation", "status"] if known else [])]
    table = Table(*columns, *(["trained on in rounds"] if known else []), box=None, pad_edge=False)
    for row in rows:
        span = row.get("trained")
        first, last = span if isinstance(span, tuple) else (None, None)
        shown = "" if first is None else f"{first}" if first == last else f"{first} to {last}"
        table.add_row(*(str(row[name] or "") for name in columns), *([shown] if known else []))
    out.print(table)


def _used(options: DataOptions, ids: Sequence[str], as_json: bool) -> Exit:
    """Prints the first and last round of each sample, in every federation with a state directory. Uses no network."""
    found = StateDirectory.all_of(options.name, options.state)
    if not found:
        raise UsageError(f"there is no state directory of {options.name}: check the machine, --name and --state")
    out, rows = console(), []
    for federation, state in found:
        usage = SampleUsage(state)
        for sample, gone in zip(ids, state.excluded(ids).tolist(), strict=True):
            rounds = usage.look_up(sample) or Used()
            rows.append({"id": sample, "federation": federation, **asdict(rounds), "excluded": gone})
            if not as_json:
                out.print(f"{sample}: {_sentence(rounds, excluded=gone)} ({federation})", soft_wrap=True)
    if as_json:
        out.print(json.dumps(rows, indent=1), soft_wrap=True)
    return Exit.OK


def _exclude(options: DataOptions, ticket_id: str) -> Exit:
    """Stores again which samples a ticket names, after the loss of the state directory."""
    if options.forget is None or not options.data:
        raise UsageError("name the samples: --forget FILE with their ids, and --data as for `puf-client run`")
    from puf_client.data import load_data
    from puf_client.worker.trainer import context_of

    data = load_data(options.data, context_of(options))
    indices = sample_list.read(options.forget, data.ids, data.groups)
    chosen = [data.ids[i] for i in indices]
    with dial(options, server=options.server, name=options.name, patience=options.patience) as transport:
        name_again(transport, options.state, ticket_id, chosen)
    console().print(f"{len(indices)} samples of {ticket_id} are excluded from training from now on")
    return Exit.OK


def _sentence(rounds: Used, *, excluded: bool) -> str:
    words = [
        f"{verb} in round {span[0]}" if span[0] == span[1] else f"{verb} in rounds {span[0]} to {span[1]}"
        for verb, span in (("trained on", rounds.trained), ("used to unlearn", rounds.unlearned))
        if span is not None
    ]
    words = words or ["never in an update from here"]
    return ", ".join([*words, "excluded from training now"] if excluded else words)
