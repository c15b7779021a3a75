"""A set of methods on one data set, with equal budgets, over several seeds; one table.

    python jobs/compare.py [section.key=value ...] [--methods fedavg,fedhm | all] [--data digits] [--seeds 0,1,2]
        [--ranks 3] [--out runs/compare-digits] [--target 0.9] [--scale 1.0] [--collect]

A method is `configs/NAME_DATA.yaml`, or a path to a YAML file or a cell of one; `all` is every `configs/*_DATA.yaml`.
Each run has a folder and a log of its own in `--out`. Those that are finished are not run again,
interrupted ones continue, so the same command after a Ctrl-C does what is left to do. A
run that is not finished is a line that says how it ended; where one fails, the exit code is 1.

`--scale` multiplies what counts rounds (rounds, milestones, `evaluation.every`, a method's options
named `..._round(s)`), so that a smaller machine can do it.

The table is of all runs in `--out`, which several commands may have made, with the last `--target`
given for them; it is also `comparison.md` and, exact, `comparison.csv`. `--collect` runs nothing and
makes that table again; with methods, seeds or another target it prints one and writes no file.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Collection, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from fedmpi import registry
from fedmpi.command.manners import Parser, called_as, run_command
from fedmpi.config import explain
from fedmpi.config.address import CONFIGS, is_address, label
from fedmpi.config.load import load, only_overrides
from fedmpi.errors import ConfigError, RunDirError
from fedmpi.mpi.mpirun import start_words
from fedmpi.report.terminal import wrapped
from fedmpi.store.files import make_folder, read_json, write_text
from fedmpi.store.run_dir import RunDir
from fedmpi.studies import comparison
from fedmpi.studies.arguments import SEEDS, add_run_arguments, changes, number
from fedmpi.studies.comparison import Row, effort_of, rows_of
from fedmpi.studies.launch import Job, make, planned, scaled, stoppable
from fedmpi.studies.runs import Run, missing_rounds, other_data, runs_in


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 if a run failed, 2 for a user's mistake, 130 if interrupted."""
    given = list(sys.argv[1:] if argv is None else argv)
    return run_command(lambda: stoppable(lambda: _compare(given)))


def _compare(given: Sequence[str]) -> int:
    arguments = _arguments(given)
    if arguments.collect:
        _collect(arguments)
        return 0
    starter = start_words(arguments.ranks)
    jobs = _jobs(arguments)
    _keep_settings(arguments, jobs, shlex.join([*called_as("jobs/compare.py"), *given]))
    failed = [job.run for job in make(jobs, starter, arguments.ranks) if not job.run.is_finished()]
    _write(arguments.out, *_table({*runs_in(arguments.out), *failed}, arguments, failed))
    return 1 if failed else 0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("jobs/compare.py", __doc__)
    parser.add_argument("--methods", help="names or paths, with commas (default all; with --collect, all there)")
    parser.add_argument("--data", default="digits", help="the data set (default digits)")
    add_run_arguments(parser)
    parser.add_argument("--out", type=Path, help="the folder of all runs (default runs/compare-DATA)")
    parser.add_argument("--target", type=number(float, 0, 1), help="in (0, 1] (default as last in --out, or 0.9)")
    parser.add_argument("--scale", type=number(float, 0), default=1.0, help="of all numbers of rounds (default 1)")
    parser.add_argument("--collect", action="store_true", help="run nothing, print the table of what is there")
    parser.add_argument("words", nargs="*", metavar="section.key=value")
    arguments = parser.parse_intermixed_args(argv)
    arguments.overrides = only_overrides(arguments.words, "name methods by --methods")
    changes(arguments.overrides)
    arguments.out = (arguments.out or Path("runs") / f"compare-{arguments.data}").resolve()
    arguments.target = arguments.target or settings_of(arguments.out).get("target", 0.9)
    return arguments


def _configs(methods: str, data: str) -> list[Path]:
    """The YAML file of each method asked for. Raises `ConfigError`."""
    found = [path for path in sorted(CONFIGS.glob(f"*_{data}.yaml")) if not path.stem.startswith("base_")]
    known = {path.stem.removesuffix(f"_{data}"): path for path in found}
    if methods == "all" and not known:
        raise ConfigError("--data", f"there is no configs/*_{data}.yaml; give paths with --methods, or another --data")
    chosen = list(known.values()) if methods == "all" else [_config(name, known) for name in methods.split(",")]
    names = [label(path) for path in chosen]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError("--methods", f"{twice[0]} is named twice, and its runs would share a folder")
    return chosen


def _config(name: str, known: dict[str, Path]) -> Path:
    if name in known:
        return known[name]
    if is_address(name) or os.sep in name:
        return Path(name).resolve()
    allowed = f"Known: {', '.join(known) or 'none'}, or a path"
    raise ConfigError("--methods", f"no method {explain.found(name)}.{explain.suggest(name, known)} {allowed}")


def _jobs(arguments: argparse.Namespace) -> list[Job]:
    """All configs are read before anything runs. Raises `UserError`, also for a folder with another config's run."""
    jobs = []
    for path in _configs(arguments.methods or "all", arguments.data):
        for seed in arguments.seeds or SEEDS:
            run = Run(label(path), seed, RunDir(arguments.out / f"{label(path)}-seed{seed}"))
            given = [*arguments.overrides, f"seed={seed}"]
            jobs.append(planned(run, path, [*given, *scaled(load(path, given), arguments.scale)]))
    return jobs


def _keep_settings(arguments: argparse.Namespace, jobs: Sequence[Job], command: str) -> None:
    """Adds this command to what the folder says of its runs. Raises RunDirError if they would have nothing in common.

    A command that has nothing left to run made none of the runs, and is not kept.
    """
    common = {"scale": arguments.scale, "set": arguments.overrides}
    kept = settings_of(arguments.out)
    if kept and {key: kept[key] for key in common} != common:
        changed = " ".join(kept["set"]) or "no override"
        text = f"has runs with --scale {kept['scale']:g} and {changed}; ask the same, or take another --out"
        raise RunDirError(str(arguments.out), text)
    commands = kept.get("commands", [])
    if not commands or not all(job.run.is_finished() for job in jobs):
        commands = [*commands, command]
    methods = [*kept.get("methods", ()), *(job.run.name for job in jobs)]
    each_once = {"commands": list(dict.fromkeys(commands)), "methods": list(dict.fromkeys(methods))}
    settings = common | {"target": arguments.target} | each_once
    write_text(make_folder(arguments.out) / "settings.json", json.dumps(settings) + "\n")


def settings_of(out: Path) -> dict[str, Any]:
    """What its runs have in common (`scale`, `set`), its table's `target`, its `methods` in order (names of runs) and
    the `commands` that made them; empty for a folder without."""
    found = read_json(out / "settings.json")
    return found if isinstance(found, dict) else {}


def _collect(arguments: argparse.Namespace) -> None:
    """The table of the runs asked for, written if it is the folder's own. Raises RunDirError if there are none."""
    asked = arguments.methods and [label(path) for path in _configs(arguments.methods, arguments.data)]
    runs = [run for run in runs_in(arguments.out) if asked is None or run.name in asked]
    runs = [run for run in runs if arguments.seeds is None or run.seed in arguments.seeds]
    if not runs:
        raise RunDirError(str(arguments.out), "holds no such runs; run it without --collect to make them")
    rows, caption = _table(runs, arguments)
    kept = settings_of(arguments.out).get("target")
    if asked is None and arguments.seeds is None and arguments.target == kept:
        _write(arguments.out, rows, caption)
        return
    comparison.print_table(rows, caption, sys.stdout)
    why = "only of the runs asked for" if arguments.target == kept else f"its target is {kept or 'not known'}"
    print(*wrapped(f"printed, and no file written in {arguments.out}: {why}"), sep="\n", flush=True)


def _table(
    runs: Collection[Run], arguments: argparse.Namespace, failed: Collection[Run] = ()
) -> tuple[list[Row], list[str]]:
    """Rows, the methods in the order in which they were first run, and caption."""
    settings, named = settings_of(arguments.out), _named(arguments)
    order = {name: place for place, name in enumerate(settings.get("methods", ()))}
    ordered = sorted(runs, key=lambda run: (order.get(run.name, len(order)), run.name, run.seed))
    rows: list[Row] = []
    configs, efforts, seeds, histories = {}, {}, {}, {}
    for _, group in groupby(ordered, key=lambda run: run.name):
        of_method = list(group)
        done = [run for run in of_method if run.is_finished()]
        effort = effort_of(done[0].config(named)) if done else None
        if effort is not None:
            method = done[0].method
            configs[method], efforts[method], seeds[method] = done[0].said, effort, [run.seed for run in done]
            histories[method] = [run.records for run in done]
        rows += rows_of(of_method, arguments.target, effort, failed=failed)
    missing = [(run.folder.path.name, missing_rounds(run.records)) for run in ordered]
    caption = [
        *other_data(ordered),
        *comparison.what_is_shown(rows, seeds, arguments.target, settings.get("scale", 1.0), settings.get("set", ())),
        *comparison.effort_lines(efforts),
        *comparison.spectrum_lines(histories),
        *comparison.difference_lines(configs),
        *(f"{name}: {what}" for name, what in missing if what),
    ]
    return rows, caption


def _named(arguments: argparse.Namespace) -> list[str]:
    """What the user names in full on the command line or in the configs asked for: fedmpi may import it."""
    asked = _configs(arguments.methods, arguments.data) if arguments.methods else []
    given = arguments.overrides
    return [*given, *(word for path in asked for word in registry.words_in_full(load(path, given)))]


def _write(out: Path, rows: Sequence[Row], caption: Sequence[str]) -> None:
    """Prints the table and writes it beside the runs."""
    comparison.print_table(rows, caption, sys.stdout)
    write_text(out / "comparison.md", comparison.markdown(rows, caption, settings_of(out)["commands"]))
    write_text(out / "comparison.csv", comparison.comma_separated(rows))
    said = f"written: {out}/comparison.md and comparison.csv"
    if any(run.records for run in runs_in(out)):  # a page has nothing to show of runs without a round
        said += f"; with curves: fedmpi show {out} --html"
    print(*wrapped(said), sep="\n", flush=True)
