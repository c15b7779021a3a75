"""The draws in a record are those of the run: seen in the nets that clients were given and in their uploads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import run_alone

from fedmpi import methods
from fedmpi.learning.flat import FlatNet
from fedmpi.methods.protocol import Method
from fedmpi.methods.values import Client
from fedmpi.report.records import read_records
from fedmpi.store.run_dir import RunDir
from fedmpi.tensors import Params

Seen = dict[tuple[int, str, int], Any]
"""(round, phase, client) -> what it was seen to do."""


def place_of(client: Client) -> tuple[int, str, int]:
    return client.task.round_number, client.task.phase, client.task.client


def same_entry(value: torch.Tensor, candidates: list[torch.Tensor]) -> int:
    """Returns the number of the candidate that has these values."""
    return next(number for number, one in enumerate(candidates) if torch.equal(one, value))


def bases_of(published: Params, out: Params) -> list[int]:
    """Of which base net each of the client's nets has the values."""
    bases = [published[f"{base}.conv1.weight"] for base in range(4)]
    places = sorted({name.partition(".")[0] for name in out})
    return [same_entry(out[f"{place}.conv1.weight"], bases) for place in places]


def kernels_of(published: Params, out: Params) -> dict[str, list[int]]:
    """Which rows of each u the client's net has."""
    cut = {name: rows for name, rows in out.items() if name.endswith(".u.weight") and len(rows) < len(published[name])}
    kernels = {}
    for name, rows in cut.items():
        leading = [kernel[: len(rows[0])] for kernel in published[name]]
        kernels[name.removesuffix(".u.weight")] = [same_entry(row, leading) for row in rows]
    return kernels


def watch_narrow(drawn: Callable[[Params, Params], Any]) -> Callable[[Method, Seen], None]:
    def watch(method: Method, seen: Seen) -> None:
        narrow = method.narrow

        def spy(published: Params, number: int, out: Params, client: Client | None = None) -> None:
            narrow(published, number, out, client)
            if client is not None:
                seen[place_of(client)] = drawn(published, out)

        method.narrow = spy

    return watch


def watch_widths(method: Method, seen: Seen) -> None:
    """The net of each step."""
    step, train = method._step, method.train
    steps: list[float] = []

    def spy_on_step(*arguments: Any) -> torch.Tensor:
        steps.append(method.options.widths[arguments[-1]])
        return step(*arguments)

    def spy(trainer: Any, client: Client, work: Any) -> Any:
        steps.clear()
        outcome = train(trainer, client, work)
        seen[place_of(client)] = list(steps)
        return outcome

    method._step, method.train = spy_on_step, spy


def watch_halves(method: Method, seen: Seen) -> None:
    """Factors whose gradients are not uploaded."""
    upload = method.upload

    def spy(net: FlatNet, client: Client) -> Params:
        sent = upload(net, client)
        if client.task.phase == "small":
            factors = [name for name in method.published_specs({1}) if ".u." in name or ".v.weight" in name]
            seen[place_of(client)] = [name for name in factors if name not in sent]
        return sent

    method.upload = spy


DYNAMIC = ("method.levels=[1,0.5,0.25]", "method.atom=0.25", "clients.tier_assignment=dynamic")
CASES: dict[str, tuple[str, Callable[[Method, Seen], None], tuple[str, ...]]] = {
    "splitmix": ("bases", watch_narrow(bases_of), DYNAMIC),
    "prism": ("kernels", watch_narrow(kernels_of), ()),
    "fjord": ("widths", watch_widths, ("method.widths=[1,0.6,0.3]", "train.local_epochs=2")),
    "fdnnc": ("withheld", watch_halves, ("method.upload=half",)),
}


@pytest.mark.parametrize("name", CASES)
def test_what_was_drawn_is_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Three rounds; then the records tell every client, its tier, and what it was given."""
    kind, watch, words = CASES[name]
    seen: Seen = {}
    create = methods.create

    def make(context: methods.MethodContext) -> Method:
        method = create(context)
        watch(method, seen)
        return method

    monkeypatch.setattr("fedmpi.methods.create", make)
    run_alone(tmp_path, f"method.name={name}", *words, "partition.name=class_dirichlet")
    records = read_records(RunDir(tmp_path))
    told = {
        (record["round"], drawn["phase"], drawn["client"]): numbers(drawn[kind])
        for record in records
        for drawn in record["draws"]
        if kind in drawn
    }
    assert told == seen and len(told) >= 6
    for record in records:
        assert [drawn["client"] for drawn in record["draws"]] == record["cohort"]


def numbers(drawn: Any) -> Any:
    """The kernels of each layer are a hexadecimal number: bit i is kernel i."""
    if not isinstance(drawn, dict):
        return drawn
    return {layer: [i for i in range(4 * len(bits)) if int(bits, 16) >> i & 1] for layer, bits in drawn.items()}


def test_the_tier_of_each_client_is_on_record(tmp_path: Path) -> None:
    """Six clients in blocks of three tiers all take part: two of each tier. FedHM draws nothing more."""
    words = ("method.name=fedhm", "method.rank_ratio=[1,0.5,0.25]", "clients.count=6", "clients.per_round=6")
    run_alone(tmp_path, *words, "rounds=1")
    (record,) = read_records(RunDir(tmp_path))
    tiers = ["1", "1", "0.5", "0.5", "0.25", "0.25"]
    assert record["draws"] == [{"client": i, "phase": "train", "tier": tier} for i, tier in enumerate(tiers)]
