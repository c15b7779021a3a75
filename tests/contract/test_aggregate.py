"""`method.aggregate`: the mean, the aggregates by name, and a user's (`examples/trimmed_mean.py`) by hand; what is
refused; attacks under which the mean fails and the others hold."""

from itertools import permutations
from pathlib import Path

import pytest
import torch
from fast import fast
from launched import unfolded
from narrow_nets import client_of, context, exchanged
from small_runs import run_all, run_alone, small_config, undisturbed
from torch import nn

import fedmpi
from fedmpi.config.address import CONFIGS
from fedmpi.config.load import load
from fedmpi.errors import ConfigError, RoundError, StartupError
from fedmpi.methods.aggregate import named
from fedmpi.methods.fedavg import FedAvg, FedAvgOptions
from fedmpi.mpi.communicator import SerialComm
from fedmpi.report.records import read_records
from fedmpi.rounds.state import CONTRIBUTED, DROPPED
from fedmpi.running.folder import config_of, launch_command
from fedmpi.running.forecast import forecast
from fedmpi.store import checkpoint
from fedmpi.store.run_dir import RunDir
from fedmpi.tensors import NOTHING, Params, Spec

TRIMMED = "trimmed_mean:TrimmedMean"
Net = tuple[float, float, float]
STATE = {"weight": torch.tensor([[10.0, 20.0]]), "bias": torch.tensor([30.0])}


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "examples"))


def fedavg(**options: object) -> FedAvg:
    """On a net of two weights and a bias."""
    return FedAvg(context(FedAvgOptions(**options), lambda: nn.Linear(2, 1)))


def tensors(net: Net) -> Params:
    return {"weight": torch.tensor([net[:2]]), "bias": torch.tensor(net[2:])}


def numbers(means: Params) -> list[float]:
    return [*means["weight"].flatten().tolist(), *means["bias"].tolist()]


@pytest.mark.parametrize(
    ("weighting", "clients", "expected"),
    [
        # ((1 + 3) / 2, (2 + 6) / 2, (-1 + 0) / 2), however many examples each has.
        ("uniform", {4: (1, (1.0, 2.0, -1.0)), 7: (99, (3.0, 6.0, 0.0))}, [2.0, 4.0, -0.5]),
        # Weights 1 and 3 of 4: (1 + 9) / 4, (2 + 18) / 4, (-1 + 0) / 4.
        ("samples", {4: (5, (1.0, 2.0, -1.0)), 7: (15, (3.0, 6.0, 0.0))}, [2.5, 5.0, -0.25]),
        # Of weights 2, 4, 2 the middle one is dropped: plain halves are left, (1 + 5) / 2 and so on.
        ("samples", {0: (2, (1.0, 0.0, 4.0)), 1: (4, None), 2: (2, (5.0, -8.0, 0.5))}, [3.0, -4.0, 2.25]),
        # All are dropped: the state stays.
        ("samples", {0: (2, None), 1: (4, None)}, [10.0, 20.0, 30.0]),
        # Nobody eligible (dynamic tiers, a phase for one tier): no exchange of anything, and the state stays.
        ("samples", {}, [10.0, 20.0, 30.0]),
    ],
)
@pytest.mark.parametrize("kind", ["gather", "reduce"])
def test_means_by_hand(
    kind: str, weighting: str, clients: dict[int, tuple[int, Net | None]], expected: list[float]
) -> None:
    """Of each client its examples, and its three numbers, or None if its training diverged."""
    uploads = [(client_of(client, 0, count), sent and tensors(sent)) for client, (count, sent) in clients.items()]
    results = exchanged(fedavg(weighting=weighting), STATE, *uploads, kind=kind)
    assert numbers(results.means) == expected
    statuses = [(client, CONTRIBUTED if sent else DROPPED) for client, (_, sent) in clients.items()]
    assert [(report.client, report.status) for report in results.reports] == statuses


def aggregated(aggregate: object, *nets: Net, weighting: str = "uniform") -> list[float]:
    """The server's net after client p has sent nets[p] with p + 1 examples, in every order of arrival."""
    method = fedavg(aggregate=aggregate, weighting=weighting)
    results = []
    for order in list(permutations(range(len(nets))))[::7]:
        uploads = [(client_of(client, 0, num_examples=client + 1), tensors(nets[client])) for client in order]
        results.append(numbers(exchanged(method, STATE, *uploads).means))
    assert all(result == results[0] for result in results)
    return results[0]


def test_median_by_hand() -> None:
    """The middle of three; of four the mean of the two in the middle."""
    nets = ((1.0, 7.0, -1.0), (4.0, 5.0, 0.0), (2.0, 9.0, 100.0), (100.0, 6.0, 3.0))
    assert aggregated("median", *nets[:3]) == [2.0, 7.0, 0.0]
    assert aggregated("median", *nets) == [3.0, 6.5, 1.5]


def test_trimmed_mean_by_hand() -> None:
    """A quarter of four is left out at each end, and a fifth of four is nobody."""
    nets = ((1.0, 7.0, -1.0), (4.0, 5.0, 0.0), (2.0, 9.0, 100.0), (101.0, 7.0, 5.0))
    assert aggregated({"name": "trimmed_mean", "trim": 0.25}, *nets) == [3.0, 7.0, 2.5]
    assert aggregated("trimmed_mean", *nets) == [27.0, 7.0, 26.0]


@pytest.mark.parametrize(("selected", "net"), [(1, [0.0, 0.0, 0.0]), (2, [0.5, 0.0, 0.0]), (4, [1.25, 0.5, 0.0])])
def test_krum_by_hand(selected: int, net: list[float]) -> None:
    """n = 5 and f = 1, so the two nearest count. Squared distances 0-1: 1, 0-2: 4, 0-3: 16, 1-2: 5, 1-3: 9, 2-3: 20.

    Scores 1 + 4, 1 + 5, 4 + 5, 9 + 16, and some 60,000 of the attacker.
    """
    nets = ((0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (0.0, 2.0, 0.0), (4.0, 0.0, 0.0), (100.0, 100.0, 100.0))
    assert aggregated({"name": "krum", "attackers": 1, "selected": selected}, *nets) == net


def test_of_equal_scores_the_first_client_counts() -> None:
    assert aggregated("krum", (1.0, 0.0, 0.0), (0.0, 0.0, 0.0), (1.0, 0.0, 0.0)) == [1.0, 0.0, 0.0]


def test_norm_clip_by_hand() -> None:
    """Changes (3, 4, 0), (0, 0, 10) and (0, 0, -1) of lengths 5, 10 and 1, whose median is 5, too.

    Clipped, the second is (0, 0, 5). With weights 1, 2 and 3 the mean is (3, 4, 10 - 3) / 6; alike (3, 4, 4) / 3.
    """
    nets = ((13.0, 24.0, 30.0), (10.0, 20.0, 40.0), (10.0, 20.0, 29.0))
    for bound in (5.0, "median"):
        clipped = aggregated({"name": "norm_clip", "bound": bound}, *nets, weighting="samples")
        assert clipped == pytest.approx([10.5, 20 + 4 / 6, 30 + 7 / 6], abs=2e-6)
    assert aggregated("norm_clip", *nets) == pytest.approx([11.0, 20 + 4 / 3, 30 + 4 / 3], abs=2e-6)
    far = aggregated({"name": "norm_clip", "bound": 10.0}, *nets)
    assert far == pytest.approx([11.0, 20 + 4 / 3, 33.0], abs=2e-6)


def test_the_example_of_a_users_by_hand() -> None:
    """Of five values one is left out at each end: (2 + 3 + 4) / 3, and so on; weights do not count."""
    nets = ((1.0, -5.0, 0.0), (100.0, 1.0, 3.0), (3.0, 2.0, 0.0), (2.0, 3.0, 9.0), (4.0, 9.0, 0.0))
    assert aggregated(TRIMMED, *nets, weighting="samples") == [3.0, 2.0, 1.0]


def test_an_entry_counts_the_clients_that_hold_it() -> None:
    """Five clients hold entry 0, one of them entry 1, where nothing is left out, and nobody entry 2."""
    trimmed = named(TRIMMED)({"x": Spec((3,))}, {"x": 64.0}, 5.0, "cpu")
    trimmed.add(0, "x", torch.tensor([1.0, 7.0]), 1.0, (slice(0, 2),))
    for client, value in enumerate((9.0, 2.0, 3.0, 4.0), 1):
        trimmed.add(client, "x", torch.tensor([value]), 1.0, (slice(0, 1),))
    weight = torch.tensor([5.0, 1.0, 0.0], dtype=torch.float64)
    assert trimmed.result("x", weight, torch.tensor([0.0, 0.0, 5.0])).tolist() == [3.0, 7.0, 5.0]


@pytest.mark.parametrize("aggregate", ["median", "trimmed_mean", "krum", "norm_clip"])
def test_a_tensor_that_nobody_sends_stays(aggregate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = fedavg(aggregate=aggregate)
    monkeypatch.setattr(method, "regions", lambda client: {"bias": NOTHING})
    monkeypatch.setattr(method, "lift", lambda upload, client: iter([("weight", upload["weight"])]))
    uploads = [(client_of(client, 0), tensors((2.0, 3.0, 4.0))) for client in range(3)]
    assert exchanged(method, STATE, *uploads).means["bias"].tolist() == [30.0]
    dropped = [(client, None) for client, _ in uploads]
    nobody = exchanged(method, STATE, *dropped).means
    assert all(torch.equal(nobody[name], value) for name, value in STATE.items())


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("fedhm method.aggregate=median", "clients of fedhm send other things.*allowed: mean, or package"),
        ("scaffold method.aggregate=norm_clip", "clients of scaffold send other things.*allowed: mean, or package"),
        ("heterofl method.aggregate.name=krum method.aggregate.attackers=0", "allowed: mean, median, trimmed_mean, or"),
        ("fedavg method.aggregate=krum", "1 attackers and 1 selected need 5 clients a round or more, but .* is 4"),
        ("fedavg method.aggregate.name=trimmed_mean method.aggregate.trim=0.5", r"aggregate.trim .*less than 0.5"),
        ("fedavg method.aggregate.name=krumm", "method.aggregate.name .*Did you mean 'krum'"),
        ("fedavg method.aggregate.trim=0.1", "method.aggregate.name .*'median', 'trimmed_mean', 'krum', 'norm_clip'"),
        ("fedavg method.aggregate=medan", "aggregate.*'medan'.*allowed: mean, median, .* or package.module:Class"),
        ("fedavg method.aggregate=nowhere:It", "method.aggregate.*'nowhere:It' cannot be imported"),
        ("fedavg method.aggregate=trimmed_mean:SHARE", "method.aggregate.*is not a class with add and result"),
        (f"fedavg method.aggregate.name={TRIMMED}", f"method.aggregate.*no options: method.aggregate={TRIMMED}, got"),
        (f"fedavg method.aggregate={TRIMMED} mpi.exchange=reduce", "mpi.exchange.*allowed: gather, auto"),
    ],
)
def test_a_mistake_is_one_line(words: str, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        small_config(*f"method.name={words}".split())


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


KRUM = ("method.name=fedavg", "method.aggregate=krum", "clients.per_round=6", "rounds=4", "output.keep_checkpoints=9")


def test_too_few_uploads_for_krum_change_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With one attacker it needs five. The plan and the start say so, each such round, and its record, too."""
    words = (*KRUM, "clients.dropout=0.2", "seed=3")
    run_alone(tmp_path / "run", *words)
    said = unfolded(capsys.readouterr().err)
    records = read_records(RunDir(tmp_path / "run"))
    arrived = [6 - len(record["dropouts"]) for record in records]
    thin = [number for number, count in enumerate(arrived, 1) if count < 5]
    assert 0 < len(thin) < 4 and min(arrived) > 0
    line = f"in {len(thin)} of 4 rounds (the first: {thin[0]}) fewer than the 5 uploads arrive that krum needs"
    assert line in said and any(line in each for each in forecast(small_config(*words), 1).warnings)
    digests = [checkpoint.state_digest(RunDir(tmp_path / "run").checkpoint_path(number)) for number in range(1, 5)]
    for number, record in enumerate(records, 1):
        assert ("unchanged" in record) == (number in thin)
        if number in thin:
            assert record["unchanged"] == f"{arrived[number - 1]} uploads arrived, and krum needs 5"
            assert f"round {number} changes nothing: {record['unchanged']}" in said
        if number > 1:
            assert (digests[number - 1] == digests[number - 2]) == (number in thin)


def test_krum_that_never_has_enough_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "times.csv"
    file.write_text("".join(f"{client},1,4\n" for client in range(4)))
    words = (*KRUM, f"clients.availability={file}")
    line = "clients: in each of 4 rounds fewer than the 5 uploads arrive that krum needs"
    todo = ".*; have 5 uploads or more arrive in one of them"
    with pytest.raises(ConfigError, match=line + todo):
        forecast(small_config(*words), 1)
    with pytest.raises(StartupError, match=line):
        run_alone(tmp_path / "run", *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["heterofl", "fedrolex", "splitmix", "lgfedavg", "perfedavg"])
def test_methods_take_the_median(tmp_path: Path, method: str) -> None:
    """Also where clients hold parts of a net, or keep some: what comes is finite, and resumed it is the same."""
    words = (f"method.name={method}", "method.aggregate=median", "clients.per_round=6")
    run_alone(tmp_path / "parts", *words, "rounds=2")
    resumed = run_alone(tmp_path / "parts", *words, "rounds=3", resume=True)
    assert resumed == undisturbed(tmp_path, *words, "rounds=3")


ROBUST = {
    "median": ("method.aggregate=median",),
    "trimmed_mean": ("method.aggregate.name=trimmed_mean", "method.aggregate.trim=0.3"),
    "krum": ("method.aggregate.name=krum", "method.aggregate.attackers=3"),
    "multi-krum": ("method.aggregate.name=krum", "method.aggregate.attackers=3", "method.aggregate.selected=4"),
    "norm_clip": ("method.aggregate=norm_clip",),
}
ATTACKED = """
    data.name=digits model.name=mlp model.hidden=[32] partition.name=iid partition.shuffle=true clients.count=10
    clients.per_round=10 rounds=10 train.local_epochs=2 train.schedule.milestones=[] train.masked_loss=false
    train.on_divergence=drop evaluation.every=10 output.progress=off output.report=false output.tensorboard=false
    method.name=attacks:Attacked method.share=0.3
""".split()


def accuracy(folder: Path, *overrides: str) -> float:
    config = load(CONFIGS / "base_digits.yaml", [*ATTACKED, *overrides])
    run_all(config, SerialComm(), folder)
    return read_records(RunDir(folder))[-1]["tiers"]["1"]["accuracy"]


@pytest.mark.parametrize("attack", fast("sign_flip", of=("label_flip", "sign_flip", "scaled")))
def test_three_attackers_of_ten(tmp_path: Path, attack: str) -> None:
    """With the mean digits end at 75 % (flipped labels), 11 % (flipped signs) and 21 % (scaled); the others hold."""
    mean = accuracy(tmp_path / "mean", f"method.attack={attack}")
    assert mean < (0.8 if attack == "label_flip" else 0.4)
    for aggregate, words in ROBUST.items():
        held = accuracy(tmp_path / aggregate, f"method.attack={attack}", *words)
        assert held > max(0.76, mean + 0.05), aggregate
