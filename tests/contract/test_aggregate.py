"""`method.aggregate`: the trimmed mean of `examples/trimmed_mean.py` by hand, its bits, and what is refused."""

from pathlib import Path

import pytest
import torch
from narrow_nets import client_of, context, exchanged
from small_runs import run_alone, small_config
from torch import nn

import fedmpi
from fedmpi.errors import ConfigError, RoundError, StartupError
from fedmpi.methods.aggregate import named
from fedmpi.methods.fedavg import FedAvg, FedAvgOptions
from fedmpi.running.advice import launch_command
from fedmpi.running.folder import config_of
from fedmpi.store.run_dir import RunDir
from fedmpi.tensors import Spec

TRIMMED = "trimmed_mean:TrimmedMean"
STATE = {"weight": torch.tensor([[10.0, 20.0]]), "bias": torch.tensor([30.0])}


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "examples"))


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (3, 0, 4, 2, 1)])
def test_by_hand(order: tuple[int, ...]) -> None:
    """Of five values one is left out at each end: (2 + 3 + 4) / 3, and so on; weights do not count."""
    values = {0: (1.0, -5.0, 0.0), 1: (100.0, 1.0, 3.0), 2: (3.0, 2.0, 0.0), 3: (2.0, 3.0, 9.0), 4: (4.0, 9.0, 0.0)}
    method = FedAvg(context(FedAvgOptions(aggregate=TRIMMED, weighting="samples"), lambda: nn.Linear(2, 1)))
    uploads = []
    for client in order:
        *weight, bias = values[client]
        upload = {"weight": torch.tensor([weight]), "bias": torch.tensor([bias])}
        uploads.append((client_of(client, 0, num_examples=client + 1), upload))
    means = exchanged(method, STATE, *uploads).means
    assert means["weight"].tolist() == [[3.0, 2.0]] and means["bias"].tolist() == [1.0]


def test_an_entry_counts_the_clients_that_hold_it() -> None:
    """Five clients hold entry 0, one of them entry 1, where nothing is left out, and nobody entry 2."""
    trimmed = named(TRIMMED)({"x": Spec((3,))}, {"x": 64.0}, 5.0, "cpu")
    trimmed.add(0, "x", torch.tensor([1.0, 7.0]), 1.0, (slice(0, 2),))
    for client, value in enumerate((9.0, 2.0, 3.0, 4.0), 1):
        trimmed.add(client, "x", torch.tensor([value]), 1.0, (slice(0, 1),))
    weight = torch.tensor([5.0, 1.0, 0.0], dtype=torch.float64)
    assert trimmed.result("x", weight, torch.tensor([0.0, 0.0, 5.0])).tolist() == [3.0, 7.0, 5.0]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("method.aggregate=medan",), "method.aggregate.*'medan'.*allowed: mean, median, .* or package.module:Class"),
        (("method.aggregate=nowhere:It",), "method.aggregate.*'nowhere:It' cannot be imported"),
        (("method.aggregate=trimmed_mean:SHARE",), "method.aggregate.*is not a class with add and result"),
        ((f"method.aggregate.name={TRIMMED}",), f"method.aggregate.*no options: method.aggregate={TRIMMED}, got"),
        ((f"method.aggregate={TRIMMED}", "mpi.exchange=reduce"), "mpi.exchange.*allowed: gather, auto"),
    ],
)
def test_a_mistake_is_one_line(words: tuple[str, ...], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        small_config("method.name=fedavg", *words)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "Flat",
            r"wrong_aggregates:Flat returns a tensor \(2,\) of torch.float32 on cpu for 'weight'; expected .*\(3, 2\)",
        ),
        (
            "Double",
            r"returns a tensor \(3, 2\) of torch.float64 on cpu for 'weight'; expected .* of torch.float32 on cpu",
        ),
        ("Endless", "returns numbers that are not finite for 'weight'"),
        ("Nothing", "returns nothing for 'weight'"),
        ("Failing", r"failed on the uploads of 4 clients: KeyError: 'weight' \(.*wrong_aggregates.py:"),
    ],
)
def test_what_it_returns_is_tried_before_a_run_has_a_folder(tmp_path: Path, name: str, line: str) -> None:
    words = ("method.name=fedavg", f"method.aggregate=wrong_aggregates:{name}")
    with pytest.raises(StartupError, match=f"method.aggregate: .*{line}") as caught:
        run_alone(tmp_path / "run", *words)
    assert "\n" not in caught.value.text() and not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match=line):
        fedmpi.plan(small_config(*words))


def test_what_it_returns_in_a_round_is_checked_too(tmp_path: Path) -> None:
    with pytest.raises(RoundError, match="round 1, stage aggregation: method.aggregate: .* not finite for 'conv1"):
        run_alone(tmp_path / "run", "method.name=fedavg", "method.aggregate=wrong_aggregates:EndlessLater")


def test_a_run_directory_alone_imports_none(tmp_path: Path) -> None:
    """The command that resumes the run names the class again, and its folder, as of a method of the user's."""
    words = ("method.name=fedavg", "rounds=1", f"method.aggregate={TRIMMED}")
    run_alone(tmp_path / "run", *words)
    with pytest.raises(ConfigError, match=f"import nothing.*method.aggregate={TRIMMED}"):
        config_of(RunDir(tmp_path / "run"))
    again = config_of(RunDir(tmp_path / "run"), [f"method.aggregate={TRIMMED}"])
    with_its_section = config_of(RunDir(tmp_path / "run"), words)
    assert again.hash() == with_its_section.hash() == small_config(*words).hash()
    assert launch_command(again, 1).endswith(f" method.aggregate={TRIMMED}")


def test_the_mean_is_no_part_of_a_hash() -> None:
    """Runs were archived before there was another aggregate."""
    hashes = [small_config("method.name=fedavg", *words).hash() for words in ((), (f"method.aggregate={TRIMMED}",))]
    assert hashes[0] == small_config("method.name=fedavg", "method.aggregate=mean").hash() != hashes[1]
