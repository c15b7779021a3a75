"""Who takes part: sampling by size and by a function, availability, lost uploads, partial work, local steps."""

from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from data_fixtures import refusal
from launched import unfolded
from small_runs import one_round, run_alone, small_config, small_setup

from fedmpi.errors import ConfigError, StartupError
from fedmpi.federation.participation import Participation, draw_by_size, read_availability
from fedmpi.learning.local import num_steps, step_sizes
from fedmpi.report.records import incidents
from fedmpi.rounds.state import ServerState
from fedmpi.running.forecast import forecast
from fedmpi.store.hdf5 import digest_of

ROUNDS = 400


def drawn(participation: Participation, number: int) -> list[int]:
    return [client for client, _ in participation.cohort(number, "train")]


def test_by_size_draws_in_proportion_and_never_the_empty() -> None:
    """Of sizes 1, 0 and 3 the last is drawn first with probability 3/4; two draws give both others."""
    sizes = np.array([1, 0, 3])
    first = Counter(draw_by_size([5, 6, 7], sizes, 1, np.random.default_rng(seed))[0] for seed in range(2000))
    assert first[6] == 0 and first[7] / 2000 == pytest.approx(0.75, abs=0.03)
    assert draw_by_size([5, 6, 7], sizes, 3, np.random.default_rng(0)) == [5, 7]
    config = small_config("clients.sampling=by_size", "clients.per_round=1", "method.name=fedavg")
    counts = Counter(drawn(Participation(config, np.array([6, 2, 0, 0, 0, 0, 0, 0])), n)[0] for n in range(1, ROUNDS))
    assert counts.keys() == {0, 1} and counts[0] / ROUNDS == pytest.approx(0.75, abs=0.06)


def test_clients_are_drawn_in_the_rounds_of_their_lines_only(tmp_path: Path) -> None:
    file = tmp_path / "times.csv"
    file.write_text("\ufeffclient,from,to\n3,1,2\n5,2,9\n\n3,8,8\n0,2,2\n")
    times = read_availability(str(file), 8)
    assert [times.in_round(number).tolist() for number in (1, 2, 3, 8, 10)] == [[3], [0, 3, 5], [5], [3, 5], []]
    config = small_config(f"clients.availability={file}", "clients.per_round=2", "method.name=fedavg")
    everyone = Participation.of(config)
    assert drawn(everyone, 1) == [3] and drawn(everyone, 10) == []
    assert {*map(tuple, [drawn(everyone, 2)])} < {(0, 3), (0, 5), (3, 5)}


@pytest.mark.parametrize("line", ["8,1,2", "-1,1,2", "0,0,2", "0,3,2", "0,1", "0,1,x", "0,1,2,3"])
def test_a_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "times.csv"
    file.write_text(f"0,1,2\n{line}\n")
    assert "times.csv: line 2: expected client (0 to 7)" in refusal(read_availability, str(file), 8)
    assert "cannot be read: No such file" in refusal(read_availability, str(tmp_path / "none.csv"), 8)


SAMPLERS = {
    "far": ("[9]", "returns client 9; allowed: whole numbers, 0 to 7"),
    "many": ("range(8)", "8 clients; allowed: clients.per_round=4 at most"),
    "late": ("[round + 5]", "late for round 3 returns client 8; allowed"),
    "alone": ("3", "alone for round 1 returns an int; allowed: a list"),
    "share": ("[0.5, 1]", "client 0.5; allowed: whole numbers, 0 to 7"),
    "floats": ("numpy.array([1.0])", "client 1.0; allowed: whole numbers"),
    "mask": ("[True]", "client True; allowed: whole numbers"),
    "names": ("['1']", "client '1'; allowed: whole numbers"),
    "twice": ("[3, 1, 3]", "for round 1 returns client 3 twice"),
    "later": ("[0] if round < 3 else other(round, seed)", "other clients at a second call"),
    "fails": ("1 / 0", "ZeroDivisionError"),
    "turn": ("[round % 8, (round + seed) % 8]", ""),
    "arrays": ("torch.tensor([4, round])", ""),
}


def test_a_function_names_the_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["import numpy, torch", "calls = []"]
    lines += ["def other(round, seed): calls.append(0); return [len(calls) % 8]"]
    lines += [f"def {name}(round, seed): return {value}" for name, (value, _) in SAMPLERS.items()]
    (tmp_path / "my_sampling.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)

    def of(name: str) -> Participation:
        return Participation.of(small_config(f"clients.sampling=my_sampling:{name}", "method.name=fedavg", "seed=2"))

    for name, (_, said) in SAMPLERS.items():
        if said:
            assert said in refusal(of, name)
    assert [drawn(of("turn"), number) for number in (1, 7)] == [[1, 3], [1, 7]] and drawn(of("arrays"), 3) == [3, 4]
    words = ("clients.sampling=my_sampling:late", "method.name=fedavg")
    assert "late for round 3 returns client 8" in refusal(run_alone, tmp_path / "run", *words)
    assert "late for round 3 returns client 8" in refusal(lambda: forecast(small_config(*words), 1))
    assert not (tmp_path / "run").exists()


def test_shares_of_lost_uploads_and_of_partial_work() -> None:
    config = small_config("clients.dropout=0.25", "clients.work.partial=0.5", "clients.work.least=0.2")
    everyone = Participation(config)
    turns = [(client, number) for client in range(8) for number in range(ROUNDS)]
    arrived = np.array([everyone.arrives(*turn, "train") for turn in turns]).reshape(8, ROUNDS)
    assert arrived.mean() == pytest.approx(0.75, abs=0.03)
    assert arrived.all(axis=0).mean() == pytest.approx(0.75**8, abs=0.05), "each client's luck is its own"
    shares = np.array([everyone.work_share(*turn) for turn in turns])
    assert (shares < 1).mean() == pytest.approx(0.5, abs=0.03) and shares.min() >= 0.2
    assert (shares < 1).reshape(8, ROUNDS).all(axis=0).mean() == pytest.approx(0.5**8, abs=0.05)
    assert everyone.mean_work_share == pytest.approx(0.8) == pytest.approx(shares.mean(), abs=0.02)


def test_steps_and_examples_by_hand() -> None:
    """20 examples in batches of 8, 8 and 4: 7 steps are two epochs and a batch."""
    train = small_config("train.local_steps=7").train
    settings = [(3, 2, 0, 1.0), (3, 2, 7, 1.0), (3, 2, 7, 0.5), (3, 2, 0, 0.01), (0, 2, 7, 1.0)]
    assert [num_steps(*setting) for setting in settings] == [6, 7, 4, 1, 0]
    assert step_sizes(train, 20) == [8, 8, 4, 8, 8, 4, 8]
    assert [step_sizes(train, 20, 3 / 7), step_sizes(train, 0)] == [[8, 8, 4], []]
    assert step_sizes(small_config().train, 20, 0.5) == [8, 8]  # round(1.5) of three steps
    assert step_sizes(small_config("train.drop_last=true", "train.local_steps=3").train, 20) == [8, 8, 8]


METHODS = ("fedavg", "fedhm", "fjord", "hermes", "perfedavg", "prism", "scaffold", "splitmix", "standalone", "topk")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_its_local_steps(tmp_path: Path, method: str) -> None:
    """5 steps whatever a client's size, a part of them where the client does a part; the costs count the same ones."""
    words = ("train.local_steps=5", "clients.work.partial=0.7", "partition.name=class_dirichlet")
    setup = small_setup(tmp_path, f"method.name={method}", *words, "clients.per_round=8", "train.lr=0.01")
    _, _, result = one_round(setup, 1, ServerState(setup.method.initial_state()))
    shares = [task.share for task in result.tasks]
    assert [report.steps for report in result.reports] == [max(1, round(5 * share)) for share in shares]
    assert min(shares) < max(shares) == 1
    if method == "fjord":
        assert [len(draw["widths"]) for draw in result.draws] == [report.steps for report in result.reports]
    if method == "fedavg":
        sizes = [sum(step_sizes(setup.config.train, task.num_examples, task.share)) for task in result.tasks]
        assert [task.cost for task in result.tasks] == [setup.macs[0] * size for size in sizes]


def test_rounds_in_which_nobody_is_there_or_nothing_arrives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The state stays as it is; records and the plan's bytes have who was drawn and what was lost."""
    file = tmp_path / "times.csv"
    file.write_text("".join(f"{client},1,1\n{client},3,3\n" for client in range(8)))
    words = ("method.name=scaffold", f"clients.availability={file}", "clients.dropout=0.97", "seed=1", "rounds=4")
    words += ("train.momentum=0", "output.keep_checkpoints=5")
    records = run_alone(tmp_path / "run", *words).records
    lost = [len(record["dropouts"]) for record in records]
    assert [len(record["cohort"]) for record in records] == [4, 0, 4, 0] and max(lost) == 4
    assert all(record["train_loss"] is None for record, number in zip(records, lost, strict=True) if number in (0, 4))
    said = capsys.readouterr().err
    assert "round 2 changes nothing: no client took part" in said and "no upload of its clients arrived" in said
    assert "unchanged" not in records[1 - lost.index(4) + 1] and records[1]["unchanged"] == "no client took part"
    (line,) = incidents(records)
    assert line == "3 of 4 rounds changed nothing (the first: 1, no upload of its clients arrived)"
    thin = "in 3 of 4 rounds (the first: 1) no upload arrives (clients.dropout=0.97, "
    assert thin in "\n".join(forecast(small_config(*words), 1).warnings) and thin in unfolded(said)
    total = sum(record["protocol_down_bytes"] + record["protocol_up_bytes"] for record in records)
    assert forecast(small_config(*words), 1).bytes_per_run == total
    setup = small_setup(tmp_path, *words)
    before = ServerState(setup.method.initial_state())
    after, _, _ = one_round(setup, lost.index(4) + 1, before)
    assert digest_of(after.params) == digest_of(before.params) and after.memories == {}


@pytest.mark.parametrize("late", ["", "3,3,3\n"])
def test_rounds_without_anybody(tmp_path: Path, late: str, capsys: pytest.CaptureFixture[str]) -> None:
    """If all are so, the plan and the run are refused; if the first ones are, the plan says nothing of idle workers."""
    file = tmp_path / "times.csv"
    file.write_text(f"0,9,9\n{late}")
    words = ("method.name=fedavg", f"clients.availability={file}")
    line = "clients: in each of 3 rounds no client takes part"
    with nullcontext() if late else pytest.raises(ConfigError, match=line):
        plan = forecast(small_config(*words), 3)
    with nullcontext() if late else pytest.raises(StartupError, match=line):
        run_alone(tmp_path / "run", *words)
    assert (tmp_path / "run").exists() == bool(late)
    if late:
        assert plan.clients_per_worker == (0, 1) and not any("nothing to do" in each for each in plan.warnings)


def test_what_takes_no_part_leaves_the_hash() -> None:
    """As it was before there were such options, so that archives keep their meaning."""
    config = small_config()
    later = ("clients.dropout=0", "clients.sampling=uniform", "train.local_steps=0", "clients.work.least=0.1")
    assert small_config(*later).hash() == config.hash() != small_config("clients.dropout=0.1").hash()
    saved = config.to_dict()
    del saved["clients"]["work"], saved["clients"]["dropout"], saved["train"]["local_steps"]
    assert config.diff(saved) == []
