"""`fedmpi plan`'s numbers: by hand on a net small enough to count, and the papers' integers."""

import json
from collections import Counter
from types import SimpleNamespace

import pytest

from fedmpi import seeds
from fedmpi.check.small import SMALL, small_config
from fedmpi.command.measured_plan import estimated, measured_round
from fedmpi.command.plan import main
from fedmpi.config.address import CONFIGS
from fedmpi.config.load import load
from fedmpi.federation.cohort import sample_cohort
from fedmpi.federation.tiers import tier_of
from fedmpi.running.forecast import Forecast, forecast, lacking_here

# A ResNet of one block and two channels on 8x8 grey digits, ten classes:
#   stem 1*2*9 = 18, two convs 2*2*9 = 36 each, three BatchNorms of 4, FC 2*10 + 10 = 30: 132 parameters;
#   MACs: 64 places * (18 + 36 + 36) + 20 = 5780.
# At rank ratio 1/2 both convs have r = 1 and rk(m + n) = 1*3*(2 + 2) = 12 parameters: 132 - 72 + 24 = 84;
#   MACs: 64 * (18 + 12 + 12) + 20 = 2708.
TINY = """
    model.name=resnet18 model.width=0.03125 model.blocks=[1] data.name=digits
    method.name=fedhm method.rank_ratio=[1,0.5] method.dense_layers=1 rounds=3 train.local_epochs=2
    clients.count=10 clients.per_round=10 clients.tier_blocks=[4,6]
""".split()
FEDAVG = [*(word for word in TINY if not word.startswith(("method", "clients"))), "method.name=fedavg"]
FULL, HALF = 132, 84


def plan(*overrides: str, num_ranks: int = 3) -> Forecast:
    return forecast(load(None, overrides), num_ranks)


def test_tiers_by_hand() -> None:
    """Bytes are 4 per parameter; compute is MACs x 2 epochs x 1437 / 10 examples."""
    full, half = plan(*TINY).tiers
    assert (full.name, full.capacity, full.clients, full.params, full.macs) == ("1", 1.0, 4, FULL, 5780)
    assert (half.name, half.capacity, half.clients, half.params, half.macs) == ("0.5", 0.5, 6, HALF, 2708)
    assert (full.down_bytes, full.up_bytes) == (4 * FULL, 4 * FULL)
    assert (half.down_bytes, half.up_bytes) == (4 * HALF, 4 * HALF)
    assert half.training_macs == pytest.approx(2708 * 2 * 143.7, rel=1e-12)


def test_a_run_by_hand() -> None:
    """Everybody takes part in each of 3 rounds: 4 x 132 + 6 x 84 = 1032 parameters down, and as many up. Each is
    tested; with every second one rounds 2 and 3, which is the last."""
    run = plan(*TINY)
    assert (run.down_bytes_per_round, run.up_bytes_per_round) == (4 * 1032, 4 * 1032)
    assert run.bytes_per_run == 2 * 3 * 4 * 1032
    assert [tier.client_rounds for tier in run.tiers] == [12.0, 18.0]
    by_hand = 3 * (4 * 5780 + 6 * 2708) * 2 * 143.7
    assert run.training_macs_per_run == pytest.approx(by_hand, rel=1e-12)
    assert run.tests_per_run == 3 and plan(*TINY, "evaluation.every=2").tests_per_run == 2


def test_what_this_machine_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks beyond the cores, and memory beyond the machine's are warned of."""
    monkeypatch.setattr("fedmpi.mpi.mpirun.cores", lambda: 2)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=10**6, available=10**6))
    memory, cores = lacking_here(plan(*TINY, num_ranks=150), 1)
    assert "150 ranks share 2 cores" in cores and "1.00 MB" in memory
    few = plan(*TINY, num_ranks=2)
    assert [*lacking_here(few, 1)] == []
    (line,) = lacking_here(few, 8)
    assert "2 ranks of 8 threads share 2 cores" in line


SKEWED = ("data.name=digits", "model.name=mlp", "partition.name=quantity_skew", "partition.alpha=0.1")


def test_what_nobody_chose_is_said_in_a_line() -> None:
    """A whole config chooses all of it, and words that make another experiment of the default config what they name."""
    said = plan(*SKEWED, "method.name=fedavg").defaults
    assert said == "chosen for you: method.weighting=samples, train.masked_loss=false, train.momentum=0.9"
    assert said in repr(plan(*SKEWED, "method.name=fedavg")).replace("\n ", "")
    assert plan("model.name=resnet18", "train.optimizer=adamw").defaults.endswith("=false, evaluation.bn=milestone")
    rest = ("train.masked_loss=false", "train.momentum=0")
    assert plan(*SKEWED, "method.name=fedavg", "method.weighting=samples", *rest).defaults == ""
    assert forecast(load(CONFIGS / "fedavg_digits.yaml", ["train.lr=1"]), 3).defaults == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("method.name=fedavg",), ""),
        (("method.name=fedavg", "method.weighting=uniform"), "method.weighting=uniform weighs them alike"),
        (("method.name=fedavg", "method.weighting=uniform", "partition.alpha=1e6"), ""),
        (("method.name=scaffold", "train.momentum=0"), "scaffold weighs them alike"),
        (("method.name=standalone",), ""),
        (("method.name=fjord",), ""),
    ],
)
def test_clients_of_unequal_sizes_that_weigh_alike_are_named(words: tuple[str, ...], said: str) -> None:
    lines = [line for line in plan(*SKEWED, *words).warnings if "weighs them alike" in line]
    assert len(lines) == bool(said) and all(said in line for line in lines)
    assert all(line.startswith("clients have 2 to ") for line in lines)


@pytest.mark.parametrize("assignment", ["fixed", "dynamic"])
def test_bytes_are_those_of_the_run_s_own_cohorts(assignment: str) -> None:
    """By drawing all cohorts and tiers once more: 7 rounds of 4 out of 10."""
    few = (f"clients.tier_assignment={assignment}", "clients.per_round=4", "rounds=7", "seed=5")
    run = plan(*TINY, *few)
    drawn: Counter[int] = Counter()
    for t in range(1, 8):
        for client in sample_cohort([range(10)], 4, seeds.numpy_generator("cohort:train", 5, t)):
            drawn[tier_of(client, (4, 6), dynamic=assignment == "dynamic", seed=5, round_number=t)] += 1
    assert sum(drawn.values()) == 28
    assert [tier.client_rounds for tier in run.tiers] == [drawn[0], drawn[1]]
    assert run.bytes_per_run == 2 * 4 * (drawn[0] * FULL + drawn[1] * HALF)


def test_memory_by_hand() -> None:
    """Each tensor begins on 64 bytes. Full net: stem 72 -> 128, convs 144 -> 192 twice, six BN vectors of 64,
    FC 80 -> 128 and 40 -> 64: 1088. FedAvg publishes just that.

    Worker: parameters, gradients, momentum, published, two uploads: 6 x 1088. Server: states 2, published 1, int64
    sums of 2, a term of 36 x 16 bytes, an upload of each of 2 workers, and one: int64 sums are counted as twice the
    state.
    """
    run = plan(*FEDAVG)
    assert run.model_bytes_worker == 6 * 1088
    assert run.model_bytes_server == (2 + 1 + 2 + 3) * 1088 + 16 * 36
    assert run.data_bytes_node == (1437 + 360) * (64 + 8)


def test_memory_of_moments() -> None:
    """AdamW's mean of squares on a worker; of the server's old state and the new, m, and for FedAdam v."""
    mean, avgm, adam = (plan(*FEDAVG, f"method.server.name={name}") for name in ("mean", "avgm", "adam"))
    assert avgm.model_bytes_server - mean.model_bytes_server == 2 * 1088
    assert adam.model_bytes_server - mean.model_bytes_server == 4 * 1088
    adamw = plan(*FEDAVG, "train.optimizer=adamw")
    assert adamw.model_bytes_worker == mean.model_bytes_worker + 1088
    assert adamw.model_bytes_server == mean.model_bytes_server


@pytest.mark.parametrize(
    ("num_ranks", "server_trains", "share"),
    [(1, False, (10, 10)), (4, False, (3, 4)), (4, True, (2, 3)), (12, False, (0, 1))],
)
def test_clients_per_worker(num_ranks: int, server_trains: bool, share: tuple[int, int]) -> None:
    """Ten clients among num_ranks - 1 workers, or num_ranks where rank 0 trains, too."""
    run = plan(*TINY, f"mpi.server_trains={str(server_trains).lower()}", num_ranks=num_ranks)
    assert (run.ranks, run.clients_per_worker) == (num_ranks, share)


def test_more_workers_than_clients_is_a_warning_with_both_numbers() -> None:
    assert plan(*TINY, num_ranks=11).warnings == ()
    (line,) = plan(*TINY, num_ranks=14).warnings
    assert "13 workers" in line and "clients.per_round is 10" in line


def test_the_text_has_every_tier_and_the_totals() -> None:
    """Down and up per round 4,128 bytes each, 24,768 in the run; ten clients on two workers."""
    text = str(plan(*TINY))
    lines = text.splitlines()
    assert lines[0] == "fedhm on digits with resnet18: 3 rounds on 3 ranks"
    assert lines[2].split()[:5] == ["1", "1", "4", "132", "5.78"]
    assert "per round: 4.13 kB down, 4.13 kB up" in text and "per run:   24.77 kB" in text
    assert "worker and round: 5" in text


# `fedmpi plan --measure`: out of a given round, and one real round.


WORDS = ("method.name=fedavg", "clients.per_round=8", "rounds=4", "evaluation.every=2", "output.checkpoint_every=3")
SECONDS = {"submodel_creation": 0.5, "local_training": 7.5, "aggregation": 0.3, "svd": 0.2, "evaluation": 1.0}
SECONDS |= {"saving": 0.4, "wall": 9.9}
ROUND = {"device": "CPU", "seconds": SECONDS, "peak_bytes": 10**9, "checkpoint_bytes": 1000, "memory_bytes": 80}


@pytest.mark.parametrize(("ranks", "cores", "at_once"), [(1, 2, 1), (3, 2, 2), (9, 4, 4)])
def test_hours_and_disk_space_by_hand(ranks: int, cores: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four rounds of 8 / n + 0.5 s, two tests of 1 / n s, two saves; the eight clients' memories have 10 bytes each."""
    monkeypatch.setattr("fedmpi.mpi.mpirun.cores", lambda: cores)
    config = small_config(*WORDS)
    found = estimated(config, forecast(config, ranks), ROUND)
    assert found["workers_at_once"] == at_once
    assert found["round_s"] == pytest.approx(8 / at_once + 0.5 + 1 / at_once + 0.4)
    assert found["hours"] == pytest.approx((4 * (8 / at_once + 0.5) + 2 / at_once + 2 * 0.4) / 3600)
    assert found["disk_bytes"] == 2 * 1000 + (config.clients.count + 2 * 8) * 10


@pytest.mark.parametrize("method", ["fedhm", "standalone"])
def test_one_real_round_is_measured(method: str) -> None:
    config = small_config(f"method.name={method}", "rounds=7", "evaluation.every=7")
    found = measured_round(config)
    assert all(found["seconds"][stage] > 0 for stage in ("local_training", "evaluation", "saving", "wall"))
    assert found["checkpoint_bytes"] > 0 and (found["memory_bytes"] > 0) == (method == "standalone")


def test_the_text_and_the_json_have_the_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL, *WORDS, "rounds=4", "--measure"]
    assert main(words) == 0
    assert "expected with 1 worker at once" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rounds"] == 4 and found["measured"]["hours"] > 0
