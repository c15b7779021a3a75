"""The draws in a record are those of the run: seen in the nets that clients were given, in their steps and uploads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fast import fast
from small_runs import run_alone

from fedmpi import methods
from fedmpi.methods.protocol import Method
from fedmpi.methods.values import Client
from fedmpi.tensors import Params

Seen = Callable[[Client, Any], None]
"""Notes what a client was seen to do."""


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


def watch(method: Method, see: Seen) -> None:
    """Has the method's calls tell what they do: nets that are given, nets of steps, factors that are not uploaded."""
    narrow, upload, name = method.narrow, method.upload, method.options.name
    drawn_of = {"splitmix": bases_of, "prism": kernels_of}.get(name)
    steps: list[float] = []

    def seen_narrow(published: Params, number: int, out: Params, client: Client | None = None) -> None:
        narrow(published, number, out, client)
        steps.clear()
        if client is not None and drawn_of:
            see(client, drawn_of(published, out))

    def seen_upload(net: Any, client: Client) -> Params:
        sent = upload(net, client)
        if name == "fjord":
            see(client, list(steps))
        if client.task.phase == "small":
            factors = [key for key in method.published_specs({1}) if ".u." in key or ".v.weight" in key]
            see(client, [key for key in factors if key not in sent])
        return sent

    method.narrow, method.upload = seen_narrow, seen_upload
    if name == "fjord":
        step = method._step

        def seen_step(*arguments: Any) -> torch.Tensor:
            steps.append(method.options.widths[arguments[-1]])
            return step(*arguments)

        method._step = seen_step


CASES = {
    "splitmix": ("bases", "method.levels=[1,0.5,0.25]", "method.atom=0.25", "clients.tier_assignment=dynamic"),
    "prism": ("kernels",),
    "fjord": ("widths", "method.widths=[1,0.6,0.3]", "train.local_epochs=2"),
    "fdnnc": ("withheld", "method.upload=half"),
}


@pytest.mark.parametrize("name", fast("fjord", of=CASES))
def test_what_was_drawn_is_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Three rounds; then the records tell every client, its tier, and what it was given."""
    kind, *words = CASES[name]
    seen, create = {}, methods.create

    def see(client: Client, what: Any) -> None:
        seen[client.task.round_number, client.task.phase, client.task.client] = what

    def make(context: methods.MethodContext) -> Method:
        method = create(context)
        watch(method, see)
        return method

    monkeypatch.setattr("fedmpi.methods.create", make)
    told = {}
    for record in run_alone(tmp_path, f"method.name={name}", *words, "partition.name=class_dirichlet").records:
        assert [drawn["client"] for drawn in record["draws"]] == record["cohort"]
        for drawn in (drawn for drawn in record["draws"] if kind in drawn):
            told[record["round"], drawn["phase"], drawn["client"]] = numbers(drawn[kind])
    assert told == seen and len(told) >= 6


def numbers(drawn: Any) -> Any:
    """The kernels of each layer are a hexadecimal number: bit i is kernel i."""
    if not isinstance(drawn, dict):
        return drawn
    return {layer: [i for i in range(4 * len(bits)) if int(bits, 16) >> i & 1] for layer, bits in drawn.items()}


def test_the_tier_of_each_client_is_on_record(tmp_path: Path) -> None:
    """Six clients in blocks of three tiers all take part: two of each tier. FedHM draws nothing more."""
    words = ("method.name=fedhm", "method.rank_ratio=[1,0.5,0.25]", "clients.count=6", "clients.per_round=6")
    (record,) = run_alone(tmp_path, *words, "rounds=1").records
    tiers = ["1", "1", "0.5", "0.5", "0.25", "0.25"]
    assert record["draws"] == [{"client": i, "phase": "train", "tier": tier} for i, tier in enumerate(tiers)]
