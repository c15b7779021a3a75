"""Draws the figures of a grid: accuracy by round and by bytes, the energy that each tier lacks of methods whose tiers
have ranks, and the figures of a paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from fedmpi.results import figure, printed_report
from fedmpi.results.answers import Results
from fedmpi.results.archive import RunRecord
from fedmpi.results.figure import Line
from fedmpi.results.grid_file import Measure
from fedmpi.results.measures import curve, nets_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def figures_of(results: Results) -> dict[str, Sequence[figure.Draw]]:
    """Returns the panels of each figure, by the name of its file."""
    content = results.grid.content
    figures: dict[str, Sequence[figure.Draw]] = {}
    for name in content.printed:
        figures[f"{name}.svg"] = printed_report.panels(content, name, results.runs)
    for setting in () if content.printed else content.settings:
        runs = results.finals(setting)
        figures[f"{setting}-curves.svg"] = _curve_panels(results, setting)
        figures[f"{setting}-energy.svg"] = [partial(_energy, run) for run in runs if len(_missing_energy(run)) > 1]
    return {name: panels for name, panels in figures.items() if panels}


def _curve_panels(results: Results, setting: str) -> list[figure.Draw]:
    """Returns panels of the largest and the smallest net by round, and of the largest by bytes."""
    runs = results.finals(setting)
    if not runs:
        return []
    nets = ["clients"]
    if all(nets_of(run.records, "largest") for run in runs):
        nets = ["largest", "smallest"]
    by_round = [partial(_curves, results, setting, net, "round") for net in nets]
    return [*by_round, partial(_curves, results, setting, nets[0], "bytes")]


def _curves(results: Results, setting: str, net: str, x: str, axes: Axes) -> None:
    for place, method in enumerate(results.grid.content.methods):
        runs = results.finals(setting, method)
        if runs:
            figure.draw_line(axes, curve(method, runs, Measure(quantity="accuracy", net=net), x), place)
    axes.set_title("clients' own nets" if net == "clients" else f"{net} net")
    axes.set_ylabel("test accuracy")
    figure.label_axes(axes, "bytes" if x == "bytes" else "rounds", "accuracy")


def _missing_energy(run: RunRecord) -> dict[str, list[tuple[int, float]]]:
    """Returns (round, share of the energy beyond its rank) by tier, of tiers whose records have several rounds; without
    zeros, because the axis is logarithmic.
    """
    found: dict[str, list[tuple[int, float]]] = {}
    for record in run.records:
        spectrum = (record.get("method") or {}).get("spectrum") or {}
        for tier, share in spectrum.get("beyond", {}).items():
            if share:
                found.setdefault(tier, []).append((record["round"], share))
    return {tier: of_tier for tier, of_tier in found.items() if len(of_tier) > 1}


def _energy(run: RunRecord, axes: Axes) -> None:
    for place, (tier, of_tier) in enumerate(_missing_energy(run).items()):
        rounds, shares = zip(*of_tier, strict=True)
        figure.draw_line(axes, Line(f"tier {tier}", rounds, shares), place)
    axes.set_yscale("log")
    axes.set_title(f"{run.run.method}, seed {run.run.seed}")
    axes.set_xlabel("round")
    axes.set_ylabel("energy beyond a tier's rank")
    figure.whole_numbers(axes)
