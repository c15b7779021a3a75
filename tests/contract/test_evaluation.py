"""Evaluation against naive loops: counts and losses, the three BatchNorm policies; every client's own net on its own
test data, or those of a choice of clients."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from by_hand import with_torchs_statistics
from fast import fast
from small_runs import one_round, run_alone, small_setup, undisturbed
from torch import Tensor, nn
from torch.nn import functional as F

from fedmpi import seeds
from fedmpi.check.contract import published_for
from fedmpi.data.batches import batch_bounds
from fedmpi.data.partition import Partition
from fedmpi.errors import UserError
from fedmpi.learning.evaluate import ClientScores
from fedmpi.learning.local import LocalTrainer
from fedmpi.methods.values import Client
from fedmpi.rounds import evaluate
from fedmpi.rounds.evaluate import test_clients as score_clients
from fedmpi.rounds.evaluate import test_tiers as score_tiers
from fedmpi.rounds.publish import publish
from fedmpi.rounds.state import ServerState, Setup

ROUND = 2


def tier_net(setup: Setup, state: dict[str, torch.Tensor], tier: int) -> nn.Module:
    """The tier's net as an ordinary module with the published values."""
    net = setup.method.net(tier)
    values = {name: torch.empty_like(value) for name, value in net.named_parameters()}
    setup.method.narrow(published_for(setup.method, state, {tier}), tier, values)
    net.load_state_dict(values)
    return net.to(memory_format=torch.channels_last)


def naive_scores(setup: Setup, net: nn.Module, own: Sequence[int] | None = None) -> tuple[float, float]:
    """Accuracy and mean loss over batches of a client's own test examples, or of all, one after the other."""
    examples = torch.arange(len(setup.data.test_y)) if own is None else torch.tensor(own)
    correct, loss = 0, 0.0
    with torch.no_grad():
        for start, stop in batch_bounds(len(examples), setup.config.evaluation.batch_size):
            inputs, targets = setup.data.test_batch_of(examples[start:stop])
            logits = net(inputs)
            correct += int((logits.argmax(1) == targets).sum())
            loss += float(F.cross_entropy(logits, targets, reduction="sum"))
    return correct / len(examples), loss / len(examples)


def training_batches(setup: Setup) -> Iterator[Tensor]:
    """The inputs of which statistics are re-estimated."""
    order = seeds.numpy_generator("restat order", setup.config.seed)
    examples = order.permutation(np.sort(setup.partition.indices))
    for number, (start, stop) in enumerate(batch_bounds(len(examples), setup.config.evaluation.batch_size)):
        generator = seeds.torch_generator("restat", setup.config.seed, ROUND, number)
        draws = setup.data.draws(examples[start:stop], 1, generator, shuffle=False)
        yield setup.data.train_batch(draws, 0, 0, stop - start)[0]


@pytest.mark.parametrize("name", ["fedavg", "fedhm"])
@pytest.mark.parametrize(
    ("bn", "milestones", "restat"),
    [
        ("batch", "[1]", False),
        ("restat", "[]", True),
        ("milestone", "[1]", True),
        ("milestone", "[2]", False),
        ("milestone", "[]", False),
    ],
)
def test_scores_equal_a_naive_loop(tmp_path: Path, name: str, bn: str, milestones: str, restat: bool) -> None:
    """For every tier, in round 2. Statistics are float64 sums here and float32 running means in torch: 1e-6 of the
    loss; counts are the same. `milestone` is `restat` in the rounds greater than the first milestone's."""
    words = (f"method.name={name}", f"evaluation.bn={bn}", f"train.schedule.milestones={milestones}", "rounds=3")
    setup = small_setup(tmp_path, *words)
    state = trained_a_little(setup)
    published = publish(setup, ServerState(state), ROUND + 1, 0)
    scores = score_tiers(setup, ROUND, published)
    assert len(scores) == len(setup.method.tiers)
    for tier, score in enumerate(scores.values()):
        net = tier_net(setup, state, tier)
        batch = naive_scores(setup, net.train())
        if restat:
            accuracy, loss = naive_scores(setup, with_torchs_statistics(net, training_batches(setup)))
            assert abs(loss - batch[1]) > 1e-3, "the two policies cannot be told apart here"
        else:
            accuracy, loss = batch
        assert score.accuracy == accuracy
        assert score.loss == pytest.approx(loss, rel=1e-5)


def trained_a_little(setup: Setup) -> dict[str, torch.Tensor]:
    """The initial state, with norms that are not 1 and 0."""
    generator = torch.Generator().manual_seed(3)
    return {
        name: value + 0.3 * torch.rand(value.shape, generator=generator) if value.dim() == 1 else value
        for name, value in setup.method.initial_state().items()
    }


def test_rounds_that_are_tested_seldom_have_the_same_scores(tmp_path: Path) -> None:
    """A test covers every tier, although a round has one client, of one tier. The last round is always tested."""
    words = ("method.name=fedhm", "method.rank_ratio=[1,0.5,0.25]", "clients.per_round=1", "rounds=4")
    always = undisturbed(tmp_path / "always", *words).records
    seldom = undisturbed(tmp_path / "seldom", *words, "evaluation.every=3").records
    assert [record.get("tiers") for record in seldom] == [None, None, always[2]["tiers"], always[3]["tiers"]]


def test_statistics_of_large_activations(tmp_path: Path) -> None:
    """A net with BatchNorm works at any scale of its weights; a stem 3,000 times larger has variances of 1e7."""
    setup = small_setup(tmp_path, "method.name=fedavg", "evaluation.bn=restat")
    state = trained_a_little(setup)
    state["conv1.weight"] = 3e3 * state["conv1.weight"]
    (score,) = score_tiers(setup, ROUND, publish(setup, ServerState(state), ROUND + 1, 0)).values()
    net = with_torchs_statistics(tier_net(setup, state, 0), training_batches(setup))
    accuracy, loss = naive_scores(setup, net)
    assert score.accuracy == accuracy and score.loss == pytest.approx(loss, rel=1e-5)


# Personal evaluation.

ON = "evaluation.personal=on"
SKEW = ("partition.name=class_dirichlet", "evaluation.batch_size=5")


def test_summary_by_hand() -> None:
    """Of 11 the worst tenth are two: (0 + 0.1) / 2; mean 5.5 / 11; variance (0.5^2 + ... + 0^2) 2 / 11 = 0.1."""
    accuracy = np.array([0.3, 0.1, 1.0, 0.9, 0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8])
    summary = ClientScores(np.arange(11), accuracy, 3).summary()
    expected = {"accuracy": 0.5, "std": 0.1**0.5, "worst_decile": 0.05, "clients": 11, "without_test_data": 3}
    assert summary == pytest.approx(expected)


@pytest.mark.parametrize(
    ("how", "bn"),
    fast(("matching", "restat"), of=[("matching", "batch"), ("classes", "batch"), ("matching", "restat")]),
)
def test_a_common_net_scores_as_a_naive_loop(tmp_path: Path, how: str, bn: str) -> None:
    """FedAvg: the published net, batch by batch, on each client's test examples, with test-batch statistics or with
    torch's cumulative ones (momentum None) of one pass of the client's own training data."""
    words = (*SKEW, "data.num_test=400", "method.name=fedavg", ON, f"evaluation.personal_test={how}")
    setup = small_setup(tmp_path, *words, f"evaluation.bn={bn}")
    state = ServerState(setup.method.initial_state())
    published = publish(setup, state, 1, 0)
    scores = score_clients(setup, 1, state, published)
    expected = {}
    for client in range(8):
        own = setup.personal_tests.client(client)
        net = setup.method.net(0).to(memory_format=torch.channels_last)
        net = with_torchs_statistics(net, own_training_batches(setup, client)) if bn == "restat" else net.eval()
        if len(own) > 1:
            expected[client], _ = naive_scores(setup, net, own)
    found = dict(zip(scores.clients.tolist(), scores.accuracy.tolist(), strict=True))
    assert len(expected) > 4 and {client: found[client] for client in expected} == expected
    assert set(found) == {client for client in range(8) if len(setup.personal_tests.client(client))}
    other = score_clients(small_setup(tmp_path, *words, "evaluation.bn=batch"), 1, state, published)
    assert ((other.accuracy != scores.accuracy).sum() > 4) == (bn == "restat"), "the policies cannot be told apart here"


def own_training_batches(setup: Setup, client: int) -> Iterator[Tensor]:
    """The inputs of which a client re-estimates its statistics."""
    examples = setup.partition.client(client)
    generator = seeds.torch_generator("personal", setup.config.seed, 1, client)
    draws = setup.data.draws(examples, 1, generator, shuffle=False)
    for start, stop in batch_bounds(len(examples), setup.config.evaluation.batch_size):
        yield setup.data.train_batch(draws, 0, start, stop)[0]


def test_a_single_test_example_borrows_the_statistics_of_the_training_data(tmp_path: Path) -> None:
    """2 x 2 inputs end at 1 x 1, where one example has no variance; 8 clients, 8 test examples."""
    words = ("data.num_test=8", "data.shape=[1,2,2]", "partition.name=iid", "evaluation.batch_size=4")
    setup = small_setup(tmp_path, *words, "method.name=fedavg", ON, "evaluation.bn=batch")
    assert 1 in setup.personal_tests.sizes.tolist()
    state = ServerState(setup.method.initial_state())
    assert len(score_clients(setup, 1, state, publish(setup, state, 1, 0)).clients) > 0


def test_a_client_is_tested_with_what_it_remembers_and_adapts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LG-FedAvg: before its test each client that took part has its own first layer, the others the server's."""
    setup = small_setup(tmp_path, "method.name=lgfedavg", *SKEW, ON)
    state, published, _ = one_round(setup, 1, ServerState(setup.method.initial_state()))
    seen: dict[int, torch.Tensor] = {}

    def adapt(trainer: LocalTrainer, client: Client, work: object) -> None:
        params = trainer.net.params
        seen[client.task.client] = params["conv1.weight"].clone()
        params["fc.bias"].copy_(torch.tensor([1e6, 0.0, 0.0, 0.0]))  # always class 0 from here on

    monkeypatch.setattr(setup.method, "adapt", adapt)
    scores = score_clients(setup, 1, state, published)
    for client, value in seen.items():
        own = setup.memories.get(client, state.memories.get(client)) or state.params
        assert torch.equal(value, own["conv1.weight"])
    assert any(client in state.memories for client in seen) and any(client not in state.memories for client in seen)
    for client, accuracy in zip(scores.clients.tolist(), scores.accuracy.tolist(), strict=True):
        labels = setup.data.test_y[torch.tensor(setup.personal_tests.client(client))]
        assert accuracy == pytest.approx(float((labels == 0).double().mean()))


def test_clients_are_in_records_table_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without personal nets only where it is asked for."""
    records = run_alone(tmp_path / "on", "method.name=fedavg", ON, "rounds=2", "output.progress=plain").records
    clients = records[-1]["clients"]
    head, *lines = (tmp_path / "on" / "report" / "clients.csv").read_text().splitlines()
    accuracy = [float(line.split(",")[1]) for line in lines]
    assert head == "client,accuracy" and clients["clients"] == len(accuracy)
    assert clients["accuracy"] == pytest.approx(sum(accuracy) / len(accuracy))
    assert "own test data: " in capsys.readouterr().out
    for words in ((), ("evaluation.personal=off",)):
        assert small_setup(tmp_path, "method.name=fedavg", *words).personal_tests is None


# `evaluation.clients` chooses which clients are tested. Only clients that have trained leave a file.

WORDS = ("method.name=lgfedavg", "clients.count=12", "clients.per_round=2", "rounds=2", "output.progress=off")


@pytest.mark.slow
def test_the_same_clients_in_every_round_with_the_same_scores(tmp_path: Path) -> None:
    """3 of 12: the records count them, and each scores what it scores where all are tested. Only clients
    that trained have files."""
    scores = {}
    for asked in (0, 3):
        folder = tmp_path / str(asked)
        records = run_alone(folder, *WORDS, f"evaluation.clients={asked}").records
        lines = (folder / "report" / "clients.csv").read_text().splitlines()[1:]
        scores[asked] = dict(line.split(",") for line in lines)
        trained = {client for record in records for client in record["cohort"]}
        with_files = {int(path.name) for path in (folder / "memory").glob("*/*")}
        assert with_files == trained and len(trained) < 12
    assert [record["clients"]["clients"] for record in records] == [3, 3]
    assert [record["clients"]["without_test_data"] for record in records] == [0, 0]
    assert len(scores[3]) == 3 and scores[3].items() <= scores[0].items() and len(scores[0]) > 3


def test_those_without_test_data_are_counted(tmp_path: Path) -> None:
    """12 clients and 5 test examples, each of which is one client's: 5 or fewer can be tested of the 8 asked for."""
    setup = small_setup(tmp_path, *WORDS, "data.num_test=5", "evaluation.clients=8")
    num_tested = int(np.count_nonzero(setup.personal_tests.sizes))
    assert 0 < num_tested <= 5
    records = undisturbed(tmp_path, *WORDS, "data.num_test=5", "evaluation.clients=8").records
    assert records[-1]["clients"]["without_test_data"] == 8 - num_tested


def test_nobody_with_test_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = Partition(np.empty(0, np.int64), np.zeros(13, np.int64))
    monkeypatch.setattr(evaluate, "personal_tests", lambda *arguments: nothing)
    with pytest.raises(
        UserError, match="evaluation.personal_test: matching: no client has a test example; take another"
    ):
        small_setup(tmp_path, *WORDS)
