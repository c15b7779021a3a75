"""What was run, in a paragraph for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmpi.errors import counted
from fedmpi.pages.facts import Facts
from fedmpi.report.lineage import Parent
from fedmpi.report.records import ranks_in_words
from fedmpi.store.units import percent, si, size, took

PALE_CURVES = "The pale part of a curve is of the rounds of"


def paragraph(facts: Facts) -> str:
    """Method, net, data, clients, rounds, time and ranks, in plain sentences."""
    config = facts.config
    clients, options = config["clients"], config["method"]
    cohort = "all clients" if clients["per_round"] == clients["count"] else f"{clients['per_round']:,} of them"
    text = (
        f"{options['name']} trained {_named(config['model'])} on {config['data']['name']}, divided among "
        f"{counted(clients['count'], 'client')} by {_named(config['partition'])}. In each round {cohort} trained "
        f"{_epochs(config['train'])}. "
    )
    done = f"All {facts.rounds:,}" if facts.is_finished else f"{facts.done:,} of {facts.rounds:,}"
    own = f"{done} rounds are done{facts.not_saved}, with seed {config['seed']}."
    return text + (_lineage(facts, facts.parent) if facts.parent else own) + _where(facts)


def _lineage(facts: Facts, parent: Parent) -> str:
    """Whose rounds these are, what the branch changes, and what the numbers are of."""
    changes = f" with {parent.changed()}" if parent.changes else ""
    own = facts.done - parent.round
    left = "" if facts.is_finished else f" of {facts.rounds - parent.round:,}"
    return (
        f"It is a branch{changes}: {parent.whose}. {counted(own, 'round')}{left} of its own "
        f"{'is' if own == 1 else 'are'} done, with seed {facts.config['seed']}; the numbers on this page are of "
        "these alone."
    )


def _named(options: Mapping[str, Any]) -> str:
    """`resnet18 (width 0.25)`: a part's name and its options that are numbers."""
    told = [f"{key} {value:g}" for key, value in options.items() if type(value) in (int, float)]
    return f"{options['name']}" + (f" ({', '.join(told[:3])})" if told else "")


def _epochs(train: Mapping[str, Any]) -> str:
    epochs = train["local_epochs"]
    return f"for {epochs} epoch{'s' * (epochs != 1)} at batch size {train['batch_size']}"


def _where(facts: Facts) -> str:
    total_s = sum(facts.time_s.values())
    text = f" The rounds took {took(total_s)}" if total_s else ""
    starts, ranks = facts.working_starts, ranks_in_words(facts.records)
    if not ranks or not starts or not text:
        return f"{text}." if text else ""
    found = {str(rank.get("place", "")).partition(": ")[2] for start in starts for rank in start.get("ranks") or ()}
    places = ", ".join(sorted(found))
    text += f" on {ranks}" + (f"; devices: {places}" if "(" in ranks else f" ({places})")
    return text + (f", in {len(starts)} starts." if len(starts) > 1 else ".")


def key_figures(facts: Facts) -> list[tuple[str, str]]:
    """(what, number) of the strip at the top of a page."""
    figures = []
    if tested := facts.tested:
        name = tested[0]
        values = facts.course(name)[1]
        figures += [(f"last accuracy, {name_of(name)}", percent(values[-1])), ("best", percent(max(values)))]
    if facts.records:
        _, moved = facts.cumulated("protocol_down_bytes", "protocol_up_bytes")
        _, macs = facts.cumulated("training_macs")
        figures += [
            ("bytes of all clients", size(float(moved[-1]))),
            ("training compute", f"{si(float(macs[-1]))} MACs"),
        ]
    if total_s := sum(facts.time_s.values()):
        figures.append(("time", took(total_s)))
    return figures


def name_of(tier: str) -> str:
    """Names of tiers are often numbers; a word before them keeps them apart from values."""
    return tier if not tier.replace(".", "", 1).isdigit() else f"tier {tier}"
