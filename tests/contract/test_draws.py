"""`python -m fedmpi.draws` against what runs did: seen in the nets that clients were given and in their uploads."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from golden_file import Told
from small_runs import TOY, run_all, small_config
from torch import Tensor

from fedmpi import draws, methods
from fedmpi.errors import RunDirError
from fedmpi.methods.protocol import Method
from fedmpi.methods.values import Client
from fedmpi.mpi.serial import SerialComm
from fedmpi.report.records import read_records
from fedmpi.running.folder import Origin
from fedmpi.store.run_dir import RunDir

Seen = dict[tuple[int, str, int], Any]
"""(round, phase, client) -> what it was seen to do."""


def place_of(client: Client) -> tuple[int, str, int]:
    return client.task.round_number, client.task.phase, client.task.client


def see_bases(method: Method, seen: Seen) -> None:
    """Of which base net each of the client's nets has the values."""
    narrow = method.narrow

    def spy(published: dict[str, Tensor], number: int, out: dict[str, Tensor], client: Client | None = None) -> None:
        narrow(published, number, out, client)
        if client is not None:
            count = len({name.partition(".")[0] for name in out})
            key = "conv1.weight"
            seen[place_of(client)] = [
                next(base for base in range(4) if torch.equal(out[f"{place}.{key}"], published[f"{base}.{key}"]))
                for place in range(count)
            ]

    method.narrow = spy


def see_kernels(method: Method, seen: Seen) -> None:
    """Which rows of each u the client's net has."""
    narrow = method.narrow

    def spy(published: dict[str, Tensor], number: int, out: dict[str, Tensor], client: Client | None = None) -> None:
        narrow(published, number, out, client)
        if client is not None:
            seen[place_of(client)] = {
                name.removesuffix(".u.weight"): [
                    next(i for i, kernel in enumerate(published[name]) if torch.equal(kernel[: len(row)], row))
                    for row in rows
                ]
                for name, rows in out.items()
                if name.endswith(".u.weight") and len(rows) < len(published[name])
            }

    method.narrow = spy


def see_widths(method: Method, seen: Seen) -> None:
    """The net of each step."""
    step = method._step
    train = method.train
    steps: list[float] = []

    def spy_on_step(*arguments: Any) -> Tensor:
        steps.append(method.options.widths[arguments[-1]])
        return step(*arguments)

    def spy(trainer: Any, client: Client, work: Any) -> Any:
        steps.clear()
        outcome = train(trainer, client, work)
        seen[place_of(client)] = list(steps)
        return outcome

    method._step, method.train = spy_on_step, spy


def see_halves(method: Method, seen: Seen) -> None:
    """Factors whose gradients are not uploaded."""
    upload = method.upload

    def spy(net: Any, client: Client) -> Any:
        sent = upload(net, client)
        if client.task.phase == "small":
            factors = [name for name in method.published_specs({1}) if ".u." in name or ".v.weight" in name]
            seen[place_of(client)] = [name for name in factors if name not in sent]
        return sent

    method.upload = spy


CASES: dict[str, tuple[str, Callable[[Method, Seen], None], tuple[str, ...]]] = {
    "splitmix": ("bases", see_bases, ("method.levels=[1,0.5,0.25]", "method.atom=0.25")),
    "splitmix-dynamic": (
        "bases",
        see_bases,
        ("method.levels=[1,0.25]", "method.atom=0.25", "clients.tier_assignment=dynamic"),
    ),
    "prism": ("kernels", see_kernels, ()),
    "fjord": ("widths", see_widths, ("method.widths=[1,0.6,0.3]", "train.local_epochs=2")),
    "fdnnc": ("withheld", see_halves, ("method.upload=half",)),
}


@pytest.mark.parametrize("case", CASES)
def test_what_was_drawn_is_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """Three rounds; then the run directory alone tells every client, its tier, and what it was given."""
    kind, see, words = CASES[case]
    seen: Seen = {}

    create = methods.create

    def make(context: methods.MethodContext) -> Method:
        method = create(context)
        see(method, seen)
        return method

    monkeypatch.setattr("fedmpi.methods.create", make)
    name = case.partition("-")[0]
    run_all(small_config(f"method.name={name}", *words, "partition.name=class_dirichlet"), SerialComm(), tmp_path)
    found = draws.Draws(tmp_path)
    told = {
        (number, client.phase, client.client): client.drawn[kind]
        for number in found.rounds
        for client in found.of_round(number)
        if client.drawn
    }
    assert told == seen and len(told) >= 6
    cohorts = [record["cohort"] for record in read_records(RunDir(tmp_path))]
    assert [[client.client for client in found.of_round(number)] for number in found.rounds] == cohorts


def test_a_cohort_without_the_largest_tier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One client a round: of the four tiers, three have nobody, and the list says so. Rounds to come are known."""
    run_all(small_config("method.name=fedhm", "clients.per_round=1", "rounds=2"), SerialComm(), tmp_path)
    capsys.readouterr()
    assert draws.main([str(tmp_path), "--json"]) == 0
    rounds = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["round"] for record in rounds] == [1, 2] and all(len(one["clients"]) == 1 for one in rounds)
    assert draws.main([str(tmp_path), "--round", "1000"]) == 0
    head, client = capsys.readouterr().out.splitlines()
    assert head.count("0 of tier") == 3 and client.startswith("  client ")


def test_what_cannot_be_known_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], told: Told) -> None:
    assert draws.main([str(tmp_path)]) == 2 and "holds no run" in capsys.readouterr().err
    run_all(small_config("method.name=prism", "rounds=2"), SerialComm(), tmp_path / "run")
    with told.by(RunDirError):
        draws.Draws(tmp_path / "run").of_round(9)
    assert draws.Draws(tmp_path / "run").of_round(3)  # the next one
    assert draws.main([str(tmp_path / "run"), "--round", "0"]) == 2


def test_rounds_of_a_branch_s_parent_are_the_parent_s(tmp_path: Path) -> None:
    """With other cohorts since, the branch cannot say what was drawn before, but who can."""
    run_all(small_config("method.name=splitmix", "rounds=1"), SerialComm(), tmp_path / "run")
    branch = small_config("method.name=splitmix", "rounds=2", "clients.per_round=3")
    run_all(branch, SerialComm(), tmp_path / "branch", origin=Origin.named(str(tmp_path / "run")))
    found = draws.Draws(tmp_path / "branch")
    assert len(found.of_round(2)) == 3
    with pytest.raises(RunDirError, match=f"ask {tmp_path / 'run'}"):
        found.of_round(1)


def test_a_run_of_one_s_own_method_needs_its_name_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_all(small_config(*TOY, "rounds=1"), SerialComm(), tmp_path / "run")
    capsys.readouterr()
    run = str(tmp_path / "run")
    assert draws.main([run]) == 2 and TOY[0] in capsys.readouterr().err
    assert draws.main([run, TOY[0]]) == 0 and ", phase wide: 2 " in capsys.readouterr().out
    assert draws.main([run, "--round", "1", TOY[0], "--json"]) == 0
