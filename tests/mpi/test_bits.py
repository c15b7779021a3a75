"""Contract 1: the bits of a run depend neither on the number of ranks nor on the exchange, nor on interruptions.

Each case runs on all ranks of this job and, alone, on rank 0; server state, scores of every round,
losses, client memories and protocol bytes must be the same, to the last bit.
"""

import contextlib
import os
import signal
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import brought_nets
import method_cases
import pytest
from fast import fast
from launched import await_event
from same_bits import Bits, References
from small_runs import finished, run_all, small_config

import fedmpi
from fedmpi import train_round
from fedmpi.check.bits import difference
from fedmpi.config.address import CONFIGS
from fedmpi.config.load import load
from fedmpi.errors import StartupError
from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.mpi.communicator import Communicator, SerialComm
from fedmpi.report.records import read_records
from fedmpi.running.folder import Origin
from fedmpi.store import checkpoint
from fedmpi.store.run_dir import RunDir

pytestmark = pytest.mark.mpi(min_size=2)

UNEVEN = ("partition.name=class_dirichlet", "partition.alpha=0.5", "train.augment=true")
DYNAMIC = (*UNEVEN, "clients.tier_assignment=dynamic")
CASES: dict[str, tuple[str, ...]] = {
    "fedavg": (*UNEVEN, "method.name=fedavg", "method.weighting=samples"),
    "fedhm": (*DYNAMIC, "method.name=fedhm", "method.rank_ratio=[1,0.5,0.25,0.125]"),
    "fedhm-coverage": (*DYNAMIC, "method.name=fedhm", "method.aggregation=delta", "method.coverage=1"),
    "topk": (*UNEVEN, "method.name=topk"),
}
EXCHANGES = ("exchange=gather", "exchange=reduce", "exchange=auto")
EXCHANGES += ("exchange=gather mpi.server_trains=true", "exchange=reduce mpi.server_trains=true")
SETTINGS: dict[str, tuple[str, ...]] = {
    "restat": ("evaluation.bn=restat", "evaluation.batch_size=24"),
    "batch": ("evaluation.bn=batch",),
    "bf16": ("train.precision=bf16",),
    "fp16": ("train.precision=fp16",),
    "drop": ("train.on_divergence=drop", "train.lr=30", "train.schedule.milestones=[]"),
    "one-client": ("clients.per_round=1",),
    "devices": ("devices.name=lognormal", "devices.deadline_s=0.13", "devices.change.round=2", "clients.per_round=7"),
}


PAIRS = tuple((case, exchange) for case in CASES for exchange in EXCHANGES)
SLOW = (("fedhm-coverage", "exchange=reduce"), ("fedhm", "exchange=auto"))
FIRST = (("fedavg", EXCHANGES[0]), ("topk", EXCHANGES[1]), ("topk", EXCHANGES[2]), ("topk", EXCHANGES[3]))
FIRST += (("fedhm", EXCHANGES[4]),)


@pytest.mark.parametrize(("case", "exchange"), fast(*FIRST, of=PAIRS, slow=SLOW))
def test_ranks_and_exchange_change_nothing(bits: Bits, case: str, exchange: str) -> None:
    bits.are_those_of_one_process(*CASES[case], "rounds=2", *f"mpi.{exchange}".split())


LATE = {
    "untested": (*DYNAMIC, "method.rank_ratio=[1,0.5,0.25,0.125]", "evaluation.every=3"),
    "restat": (*DYNAMIC, "method.rank_ratio=[1,0.5]", "evaluation.bn=restat", "evaluation.personal=on"),
    "no-dense-client": (*UNEVEN, "method.rank_ratio=[0.5,0.25]", "method.aggregation=delta"),
    "one-dense-client": (*UNEVEN, "clients.per_round=1", "clients.tier_blocks=[7,1]", "method.rank_ratio=[1,0.5]"),
}


@pytest.mark.parametrize("exchange", ["gather", "reduce"])
@pytest.mark.parametrize("case", fast("untested", of=LATE))
def test_factors_that_follow_keep_the_bits(bits: Bits, case: str, exchange: str) -> None:
    bits.are_those_of_one_process("method.name=fedhm", *LATE[case], "rounds=3", f"mpi.exchange={exchange}")


def test_dense_clients_train_while_rank_0_factorizes(bits: Bits, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 does not even begin before a worker has begun to train."""
    has_begun = bits.folder / "begun"
    decompose = FactorizedLayer.decompose
    simulate = train_round.simulate_client

    def decompose_later(*arguments: Any) -> Any:
        await_event(has_begun.exists, "no worker trains before it has the factors")
        return decompose(*arguments)

    def begin(*arguments: object) -> object:
        has_begun.touch()
        return simulate(*arguments)

    monkeypatch.setattr(FactorizedLayer, "decompose", decompose_later)
    monkeypatch.setattr(train_round, "simulate_client", begin)
    words = ("method.name=fedhm", "method.rank_ratio=[1,0.5]", "clients.per_round=8", "rounds=2")
    bits.are_those_of_one_process(*words)


def test_all_ranks_factorize_where_no_net_is_dense(bits: Bits, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the four layers is factorized by one of the ranks, for training and for the test."""
    made: set[str] = set()
    decompose = FactorizedLayer.decompose

    def noted(layer: FactorizedLayer, *arguments: Any) -> Any:
        made.add(layer.name)
        return decompose(layer, *arguments)

    monkeypatch.setattr(FactorizedLayer, "decompose", noted)
    words = ("method.name=fedhm", "method.rank_ratio=[0.5,0.25]", "method.dense_layers=1", "rounds=1")
    bits.run(small_config(*words))
    by_rank = [text.split() for text in bits.comm.allgather_object(" ".join(made))]
    layers = list(chain(*by_rank))
    bits.on_all_ranks(all(by_rank[:4]) and len(layers) == len({*layers}) == 4, f"who factorized: {by_rank}")


MLP = ("model.name=mlp", "model.hidden=[8]")
TASK = ("train.masked_loss=false", "partition.name=iid", "evaluation.batch_size=7")
NET = ("method.name=fedavg", "evaluation.bn=batch", "rounds=1")
BROUGHT = (*NET, "model.name=brought_nets:BroughtOptions")
GPT = ("model.name=hub_nets:Gpt2", "data.name=hub_nets:sentences", "method.name=lora", "method.ranks=[4,2]")
OTHERS: dict[str, tuple[str, ...]] = {
    # Rank 0 computes in the order of the clients' numbers, whatever the order in which their uploads arrive.
    **{
        name: ("method.name=fedavg", "clients.per_round=6", f"method.aggregate={name}")
        for name in ("krum", "median", "trimmed_mean", "norm_clip")
    },
    # Squared errors and tokens that are right are added up exactly, over ranks and over one process.
    "numbers": (
        *(*TASK, *MLP, "method.name=fedhm"),
        *("data.name=other_tasks:numbers", "data.outputs=2", "train.loss=other_tasks:huber"),
    ),
    "tags": (
        *(*TASK, *MLP, "method.name=heterofl"),
        *("data.name=other_tasks:tags", "evaluation.metrics=[f1_macro]", "stop.patience=9"),
    ),
    "tokens": (*TASK, "model.name=sequences:Tagger", "data.name=sequences:parity", "method.name=standalone"),
    # Its tokens have a class each, its adapters unequal ranks, and its dropout draws.
    "gpt": (*TASK, *GPT, "model.trained=none"),
    "metrics": (
        *(*UNEVEN, "method.name=fedhm", "method.rank_ratio=[1,0.5]"),
        "evaluation.metrics=[f1_macro,auc,top5,confusion]",
    ),
    "torchvision": (*NET, "model.name=torchvision:resnet18", "data.shape=[3,16,16]", "data.num_train=32"),
    # Nets that keep running statistics, draw random numbers outside torch or have buffers.
    **{part: (*BROUGHT, f"model.part={part}") for part in brought_nets.ALLOWED},
}
IN_FAST_RUN = ("krum", "numbers", "tags", "tokens", "metrics", "batch-norm", "dropout", "global-generators")


@pytest.mark.parametrize("case", fast(*IN_FAST_RUN, of=OTHERS))
def test_what_else_a_run_may_have_keeps_the_bits(bits: Bits, case: str) -> None:
    bits.are_those_of_one_process("rounds=2", *OTHERS[case])


PARTS = {
    "scaffold": ("method.name=scaffold", "train.momentum=0", "clients.sampling=by_size", "train.local_steps=3"),
    "fedhm": (*DYNAMIC, "method.name=fedhm", "method.rank_ratio=[1,0.5]", "train.local_epochs=2"),
}


@pytest.mark.parametrize("case", fast("scaffold", of=PARTS))
def test_clients_that_are_away_or_do_a_part_or_are_lost(bits: Bits, case: str) -> None:
    """The last two of four rounds are without clients."""
    file = bits.folder / "times.csv"
    if bits.comm.is_root:
        file.write_text("".join(f"{client},{1 + client % 2},3\n" for client in range(8)))
    bits.comm.wait_for_all()
    words = (*PARTS[case], *UNEVEN, f"clients.availability={file}", "clients.dropout=0.4", "clients.work.partial=0.7")
    bits.are_those_of_one_start(*words, rounds=(2, 4))


def test_all_ranks_end_with_the_same_test(bits: Bits) -> None:
    """Rank 0 alone has the records; the second start goes by the tests of the first one, too."""
    words = ("method.name=standalone", "train.lr=1e-9", "clients.per_round=2", "stop.patience=2")
    bits.are_those_of_one_start(*words, rounds=(2, 20))
    ended = "ended" not in (records := read_records(RunDir(bits.folder / "run")))[-2] and "ended" in records[-1]
    bits.on_all_ranks(ended and len(records) < 20, str(len(records)))


def test_one_upload_at_a_time(bits: Bits, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where uploads are so large that rank 0 does not take those of all workers at once."""
    monkeypatch.setattr("fedmpi.rounds.exchange.WAVE_BYTES", 1)
    bits.are_those_of_one_process(*CASES["fedhm"], "rounds=2", "mpi.exchange=gather")


# Of each method one case runs on 3 ranks in the fast run.
MAIN_CASES = [case for case in method_cases.CASES if "-" not in case or case == "fedhm-dynamic"]
VARIANTS = [case for case in method_cases.CASES if case not in MAIN_CASES]
IN_CI = ("fedhm-coverage", "lgfedavg-pretrained", "fdnnc-both", "prism-cut")
IN_CI += tuple(case for case in VARIANTS if case.startswith("lora-"))
"""Several phases, sums of each tier, cut inputs, all aggregations of adapters. The nightly script has the others."""


@pytest.fixture(scope="module")
def references_of_methods(
    request: pytest.FixtureRequest, comm: Communicator, references: References, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each rank computes some: while rank 0 computes one, the others wait and leave their cores idle.

    One that fails is computed again by rank 0, and fails its own test.
    """
    items = [item for item in request.session.items if item.function is test_every_method_keeps_its_bits]
    folder = tmp_path_factory.mktemp("references_of_methods")
    for item in items[comm.rank :: comm.size]:
        with contextlib.suppress(Exception):
            references.make(folder, small_config(*_words(item.callspec.params["case"]), "rounds=3"), {})
    comm.wait_for_all()


def _words(case: str) -> tuple[str, ...]:
    return (*method_cases.CASES[case], "evaluation.personal=on")


@pytest.mark.parametrize(
    "case", [*fast("fedhm-dynamic", "hermes", of=MAIN_CASES, but_on=3), *fast(of=VARIANTS, slow=IN_CI)]
)
@pytest.mark.usefixtures("references_of_methods")
def test_every_method_keeps_its_bits(bits: Bits, case: str) -> None:
    """Personal tests are on."""
    bits.are_those_of_one_start(*_words(case), rounds=(2, 3))


def test_a_net_that_keeps_something_is_refused_by_all(bits: Bits) -> None:
    """With the same line on every rank, the server included."""
    config = small_config("model.name=brought_nets:BroughtOptions", "model.part=attribute", "method.name=fedavg")
    with pytest.raises(StartupError) as caught:
        run_all(config, bits.comm, bits.folder)
    text = caught.value.text()
    bits.on_all_ranks("it keeps something" in text and "\n" not in text, f"not refused in one line: {text!r}")


@pytest.mark.parametrize("setting", fast("drop", of=SETTINGS, but_on=3))
def test_other_settings_keep_the_bits(bits: Bits, setting: str) -> None:
    config = small_config(*CASES["fedhm"], *SETTINGS[setting], "rounds=2")
    bits.run(config)
    expected = bits.alone(config)
    bits.check(expected)
    is_shown = expected is None or setting != "drop" or [len(r["dropped"]) for r in expected.records] == [2, 4]
    bits.on_all_ranks(is_shown, "some clients of round 1 and all of round 2 should diverge here")


@pytest.mark.parametrize("case", fast("topk", of=CASES, slow=("fedhm-coverage",)))
@pytest.mark.parametrize("first", ["ranks", "alone"])
def test_a_run_goes_on_with_other_ranks(bits: Bits, case: str, first: str) -> None:
    """Two rounds on these ranks and two on rank 0 alone, or the other way round, equal four rounds alone."""
    for rounds, on_ranks in ((2, first == "ranks"), (4, first != "ranks")):
        exchange = f"mpi.exchange={'gather' if on_ranks else 'reduce'}"
        config = small_config(*CASES[case], f"rounds={rounds}", exchange)
        if on_ranks:
            bits.run(config, resume=rounds == 4)
        else:
            bits.by_rank_0(partial(run_all, config, SerialComm(), bits.folder / "run", resume=rounds == 4))
    bits.check(bits.alone(small_config(*CASES[case], "rounds=4")))


@pytest.mark.parametrize("case", fast("topk", of=("topk", "hermes", "scaffold", "fedhm-dynamic"), slow=("scaffold",)))
def test_a_run_that_begins_with_another_s_state(bits: Bits, case: str) -> None:
    """Rank 0 alone makes two rounds; all ranks begin with what it has saved."""
    config = small_config(*method_cases.CASES[case], "rounds=2")
    bits.by_rank_0(lambda: run_all(config, SerialComm(), bits.folder / "parent"))
    begins = {"origin": Origin.named(str(bits.folder / "parent"))}
    bits.run(config, **begins)
    bits.check(bits.alone(config, **begins))


def test_memories_of_the_next_round_survive_a_slow_save(bits: Bits, monkeypatch: pytest.MonkeyPatch) -> None:
    """While rank 0 saves round t and prunes old memories, workers write those of round t + 1.

    Saving takes until a worker has written one here, so that it is there when pruning begins.
    """
    config = small_config(*CASES["topk"], "rounds=4")
    expected = bits.alone(config)
    save = checkpoint.save

    def slow_save(folder: RunDir, snapshot: checkpoint.Snapshot, *more: object) -> Path:
        number = snapshot.round + 1
        if number <= config.rounds:
            written = partial(folder.path.glob, f"memory/*/*/{number}-*")
            await_event(lambda: any(written()), f"no worker is in round {number}")
        return save(folder, snapshot, *more)

    monkeypatch.setattr(checkpoint, "save", slow_save)
    bits.run(config)
    bits.check(expected)


def test_a_program_on_all_ranks(bits: Bits) -> None:
    """By `fedmpi.run`, in two parts: a program may call it again, with MPI started. Every rank can read the run."""

    def surroundings() -> tuple[dict[str, str], list[object]]:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
        return dict(os.environ), [signal.getsignal(number) for number in numbers]

    words, before = ("method.name=fedhm", "method.rank_ratio=[1,0.5]", "rounds=2"), surroundings()
    with bits.all_or_none():
        fedmpi.run(small_config(*words, "rounds=1"), bits.folder / "run", progress=False)
        run = fedmpi.run(small_config(*words), bits.folder / "run", resume=True, progress=False)
        opened = fedmpi.open_run(bits.folder / "run")
    bits.on_all_ranks(before == surroundings(), "the run has left something behind")
    bits.on_all_ranks(run.is_finished and run.scores == opened.scores and len(run.rounds()) == 2, "not read everywhere")
    bits.check(bits.alone(small_config(*words)))


def test_bits_differ_where_they_should(bits: Bits) -> None:
    """The comparison sees a difference: another seed gives another state and other scores."""
    words = (*CASES["fedhm"], "rounds=2")
    bits.run(small_config(*words, "seed=1"))
    expected = bits.alone(small_config(*words))
    found = "" if expected is None else difference(finished(bits.folder / "run"), expected)
    bits.on_all_ranks(expected is None or ("server state" in found and "tiers" in found), "another seed, same bits")


DIGITS = sorted(path for path in CONFIGS.glob("*_digits.yaml") if not path.stem.startswith("base"))
FAST = [path for path in DIGITS if path.stem in ("fedhm_digits", "lgfedavg_digits")]
SHORT = ("rounds=2", "train.local_epochs=1", "output.progress=off", "output.tensorboard=false", "output.report=false")
# What a run of two rounds needs to come to everything that the method does.
ALSO = {"fdnnc_bfirst_digits": ("method.switch_round=1",), "lgfedavg_digits": ("method.pretrain_rounds=1",)}


@pytest.mark.mpi(min_size=5)
@pytest.mark.parametrize("path", fast(*FAST, of=DIGITS, slow=()), ids=lambda path: path.stem)
def test_the_digits_keep_their_bits(bits: Bits, path: Path) -> None:
    """Every configs/*_digits.yaml on one rank and on all ranks of this job, real data included."""
    config = load(path, [*SHORT, *ALSO.get(path.stem, ())])
    bits.run(config)
    bits.check(bits.alone(config))
