"""Personal evaluation: every client's own net on its own test data, or those of a choice of clients."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from by_hand import with_torchs_statistics
from fast import fast
from small_runs import finished, one_round, run_alone, small_setup, undisturbed
from torch import Tensor

from fedmpi import seeds
from fedmpi.data.batches import batch_bounds
from fedmpi.data.partition import Partition
from fedmpi.errors import UserError
from fedmpi.learning.evaluate import ClientScores
from fedmpi.learning.local import LocalTrainer
from fedmpi.methods.values import Client
from fedmpi.rounds import evaluate
from fedmpi.rounds.evaluate import test_clients as score_clients
from fedmpi.rounds.publish import publish
from fedmpi.rounds.state import ServerState, Setup

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
        net = with_torchs_statistics(net, training_batches(setup, client)) if bn == "restat" else net.eval()
        right = 0
        for start, stop in batch_bounds(len(own), 5):
            inputs, targets = setup.data.test_batch_of(torch.tensor(own[start:stop]))
            right += int((net(inputs).argmax(1) == targets).sum())
        if len(own) > 1:
            expected[client] = right / len(own)
    found = dict(zip(scores.clients.tolist(), scores.accuracy.tolist(), strict=True))
    assert len(expected) > 4 and {client: found[client] for client in expected} == expected
    assert set(found) == {client for client in range(8) if len(setup.personal_tests.client(client))}
    other = score_clients(small_setup(tmp_path, *words, "evaluation.bn=batch"), 1, state, published)
    assert ((other.accuracy != scores.accuracy).sum() > 4) == (bn == "restat"), "the policies cannot be told apart here"


def training_batches(setup: Setup, client: int) -> Iterator[Tensor]:
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
    run_alone(tmp_path / "on", "method.name=fedavg", ON, "rounds=2", "output.progress=plain")
    clients = finished(tmp_path / "on").records[-1]["clients"]
    head, *lines = (tmp_path / "on" / "report" / "clients.csv").read_text().splitlines()
    accuracy = [float(line.split(",")[1]) for line in lines]
    assert head == "client,accuracy" and clients["clients"] == len(accuracy)
    assert clients["accuracy"] == pytest.approx(sum(accuracy) / len(accuracy))
    assert "own test data: " in capsys.readouterr().out
    for words in ((), ("evaluation.personal=off",)):
        assert small_setup(tmp_path, "method.name=fedavg", *words).personal_tests is None


# A choice of clients is tested (`evaluation.clients`), and only those that trained leave something on disk.

WORDS = ("method.name=lgfedavg", "clients.count=12", "clients.per_round=2", "rounds=2", "output.progress=off")


@pytest.mark.slow
def test_the_same_clients_in_every_round_with_the_same_scores(tmp_path: Path) -> None:
    """3 of 12: the records count them, and each scores what it scores where all are tested. Only clients
    that trained have files."""
    scores = {}
    for asked in (0, 3):
        folder = tmp_path / str(asked)
        run_alone(folder, *WORDS, f"evaluation.clients={asked}")
        lines = (folder / "report" / "clients.csv").read_text().splitlines()[1:]
        scores[asked] = dict(line.split(",") for line in lines)
        trained = {client for record in finished(folder).records for client in record["cohort"]}
        with_files = {int(path.name) for path in (folder / "memory").glob("*/*")}
        assert with_files == trained and len(trained) < 12
    records = finished(tmp_path / "3").records
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
