"""Devices: times and energies by hand for every method on a net of two layers, memory, deadline, own files.

The device of these tests multiplies in 1 ns, moves a float32 in 1 ns and a byte over its link in 1,000 ns; a transfer
begins after 5,000 ns, a mini-batch costs 1,000 ns and a layer in a pass 10 ns. Its vectors have one
lane. It takes 3 W to compute, 2 W to send and 1 W to wait. So a layer of `macs` that moves `moved` numbers an example
and has `params` takes, for B examples, max(B macs, B moved + params) + 10 ns forward, a step 1,000 + 3 times the sum,
and a test 1,000 + the sum.
"""

import re
import runpy
from collections.abc import Sequence
from importlib.resources import files
from itertools import accumulate
from pathlib import Path
from typing import get_args

import method_cases
import numpy as np
import pytest
from data_fixtures import refusal
from fast import fast
from small_runs import run_alone, small_config, small_setup
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from fedmpi import costs, methods, seeds
from fedmpi.config.address import CONFIGS
from fedmpi.config.fields import DeviceClass
from fedmpi.config.load import load
from fedmpi.data.partition import saved
from fedmpi.devices.fleet import Fleet, Spent
from fedmpi.devices.model import Parts, energy_uj, memory_bytes, server_ns
from fedmpi.devices.profiles import COLUMNS, built_in, read
from fedmpi.federation.assignment import Task
from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.methods.protocol import all_nets
from fedmpi.methods.values import Client, ClientLoad, Training
from fedmpi.models.trial import examples_of
from fedmpi.report.records import read_records
from fedmpi.results import page
from fedmpi.results.frame import grouped, panels, spent
from fedmpi.results.run import Run
from fedmpi.results.show import figure_of
from fedmpi.running import start
from fedmpi.running.forecast import forecast
from fedmpi.store import checkpoint
from fedmpi.store.run_dir import RunDir
from fedmpi.store.units import joules, short_duration

bench = runpy.run_path(str(CONFIGS.with_name("jobs") / "bench" / "devices.py"))
UNEVEN = ("partition.name=class_dirichlet", "partition.alpha=0.3")
WIDTHS = ("method.name=heterofl", "method.widths=[1,0.5,0.25]")
PERCEPTRON = ("model.name=mlp", "model.hidden=[8]", "data.shape=[1,4,4]")
ON_CLASSES = (*PERCEPTRON, "devices.name=classes")
Layers = Sequence[tuple[int, int, int]]
"""(macs, moved, params) of each."""
HEAD = f"class,{','.join(COLUMNS)}"
ROW = "slow,1,1,4,1,0.01,1,8,8,0.005,3,2,1"
FAST_ROW = "fast,1,1,4,1,0.01,1,80,80,0.005,3,2,1"


def file_of(folder: Path, *rows: str) -> list[str]:
    """Writes a file of these devices; returns the settings that name it."""
    path = folder / "devices.csv"
    path.write_text("\n".join([HEAD, *rows]))
    return ["devices.name=file", f"devices.path={path}"]


def with_memories(folder: Path, *memories: float) -> list[str]:
    """The settings of a file of devices that differ in their bytes of memory."""
    return file_of(folder, *(f"with{size / 1e6},1,1,4,1,0.01,{size / 1e6},8,8,0.005,3,2,1" for size in memories))


@pytest.fixture
def own_file(tmp_path: Path) -> list[str]:
    return file_of(tmp_path, ROW)


def fleet_of(*overrides: str) -> Fleet:
    config = small_config(*overrides)
    info = config.data.used()
    method = methods.create(start.method_context(config, info))
    nets = [costs.measure(method.net(net, empty=True), examples_of(info)) for net in all_nets(method)]
    return Fleet.of(config, method, nets)


@pytest.fixture
def needed() -> list[int]:
    """The bytes that training takes at each of `WIDTHS`."""
    return fleet_of("devices.name=classes", *WIDTHS).needed_bytes


def linear(inputs: int, outputs: int, *, bias: bool = True) -> tuple[int, int, int]:
    return inputs * outputs, inputs + outputs, inputs * outputs + bias * outputs


def relu(width: int) -> tuple[int, int, int]:
    return 0, 2 * width, 0


def two_layers(hidden: int) -> Layers:
    """16 inputs, 4 classes."""
    return linear(16, hidden), relu(hidden), linear(hidden, 4)


def forward(layers: Layers, size: int) -> int:
    return sum(max(size * macs, size * moved + params) + 10 for macs, moved, params in layers)


def step(layers: Layers, size: int) -> int:
    return 1_000 + 3 * forward(layers, size)


def epoch(layers: Layers) -> int:
    """10 examples in mini-batches of 8: one of 8, one of 2."""
    return step(layers, 8) + step(layers, 2)


FULL = two_layers(8)
PARAMS = 16 * 8 + 8 + 8 * 4 + 4
# Rank 4 of the first layer, the second is dense: 16 x 4, 4 x 8. The bias stands outside of the factors, and is not read
# by a layer.
FEDHM = (linear(16, 4, bias=False), linear(4, 8, bias=False), relu(8), linear(8, 4))
# 2 kernels, 2 rows of v.
PRISM = (linear(16, 2, bias=False), linear(2, 2, bias=False), relu(8), linear(8, 4))
# Rank 2 of the first layer, 1 of the second.
FDNNC = (linear(16, 2, bias=False), linear(2, 8, bias=False), relu(8), linear(8, 1, bias=False))
FDNNC += (linear(1, 4, bias=False),)
BASE = two_layers(2)
# Rank 4 beside both layers, whose weights and biases stay as they are, and are read: 16 x 8 + 4 (16 + 8) MACs, and as
# many numbers with the bias of 8; 8 x 4 + 4 (8 + 4), and the bias of 4.
LORA = ((224, 24, 232), relu(8), (80, 12, 84))

# SGD with momentum reads parameter, gradient and momentum and writes parameter and momentum: 5 numbers; without: 3.
# Of each method: bytes down and up, and the nanoseconds of its smaller tier for 10 examples in one epoch.
BY_HAND: dict[str, tuple[int, int, int]] = {
    "fedavg": (4 * PARAMS, 4 * PARAMS, epoch(FULL) + 2 * 5 * PARAMS),
    # The decay of rank 4: 2 r^2 (M + N) = 2 * 16 * (16 + 8) MACs in each step.
    "fedhm": (4 * 140, 4 * 140, epoch(FEDHM) + 2 * (5 * 140 + 768)),
    "orthdrop": (4 * 140, 4 * 140, epoch(FEDHM) + 2 * (5 * 140 + 768)),
    # 2 * 4 * (16 + 2) MACs.
    "prism": (4 * 80, 4 * 80, epoch(PRISM) + 2 * (5 * 80 + 144)),
    # Widths 0.6 (5 hidden) and 0.3 (3 hidden), each as often: in a plan the step of 8 has the wide net.
    "fjord": (4 * 109, 4 * 109, step(two_layers(5), 8) + step(two_layers(3), 2) + 2 * 5 * 109),
    # In each step the tier's net passes as teacher, too.
    "fjord-distillation": (4 * 88, 4 * 88, 2 * epoch(two_layers(4)) + 2 * 5 * 88),
    "heterofl": (4 * 88, 4 * 88, epoch(two_layers(4)) + 2 * 5 * 88),
    "fedrolex": (4 * 88, 4 * 88, epoch(two_layers(4)) + 2 * 5 * 88),
    "origdrop": (4 * 46, 4 * 46, epoch(BASE) + 2 * 5 * 46),
    # Two base nets of two hidden units, one after the other.
    "splitmix": (4 * 92, 4 * 92, epoch((*BASE, *BASE)) + 2 * 5 * 92),
    # w and w_t are added to the gradient, each in a pass that reads two numbers and writes one.
    "fedprox": (4 * PARAMS, 4 * PARAMS, epoch(FULL) + 2 * (5 + 6) * PARAMS),
    # Its count of steps travels, too.
    "fednova": (4 * PARAMS, 4 * PARAMS + 4, epoch(FULL) + 2 * 5 * PARAMS),
    "feddyn": (4 * PARAMS, 4 * PARAMS, epoch(FULL) + 2 * (5 + 9) * PARAMS),
    # Without momentum; net and control variate travel.
    "scaffold": (8 * PARAMS, 8 * PARAMS, epoch(FULL) + 2 * (3 + 3) * PARAMS),
    # Two older nets pass each mini-batch forward.
    "moon": (4 * PARAMS, 4 * PARAMS, epoch(FULL) + 2 * (2_000 + forward(FULL, 8) + forward(FULL, 2)) + 10 * PARAMS),
    # A gradient for the inner step, which moves three numbers, and one for the outer step; HF has two more.
    "perfedavg": (4 * PARAMS, 4 * PARAMS, 2 * epoch(FULL) + 2 * (5 + 3) * PARAMS),
    "perfedavg-hf": (4 * PARAMS, 4 * PARAMS, 4 * epoch(FULL) + 2 * (5 + 3) * PARAMS),
    # The first layer stays with the client.
    "lgfedavg": (4 * 36, 4 * 36, epoch(FULL) + 2 * 5 * PARAMS),
    # 8 of 10 examples train; 2 are tested. A mask has a bit for each parameter. The lasso moves 8 numbers a weight.
    "hermes": (4 * PARAMS, 4 * PARAMS + 22, step(FULL, 8) + 1_000 + forward(FULL, 2) + 5 * PARAMS + 8 * 160),
    # Nothing travels; 8 clients of which 4 take part have twice the epochs.
    "standalone": (0, 0, 2 * epoch(FULL) + 4 * 5 * PARAMS),
    # ceil(0.1 * 172) = 18 entries of 8 bytes.
    "topk": (4 * PARAMS, 8 * 18, epoch(FULL) + 2 * 5 * PARAMS),
    # 4 (16 + 8) + 4 (8 + 4) numbers are trained and travel.
    "lora": (4 * 144, 4 * 144, epoch(LORA) + 2 * 5 * 144),
    # One gradient, no update; half of the 60 numbers of the factors travel, and 12 biases.
    "fdnnc": (4 * 72, 4 * (30 + 12), step(FDNNC, 8)),
}


def test_every_method_is_there() -> None:
    """But fedbn, which needs a net with BatchNorm: it trains as fedavg."""
    assert {case.partition("-")[0] for case in BY_HAND} == {case.partition("-")[0] for case in method_cases.CASES} - {
        "fedbn"
    }


@pytest.mark.parametrize("case", BY_HAND)
def test_time_and_energy_by_hand(case: str, own_file: list[str]) -> None:
    down_bytes, up_bytes, compute_ns = BY_HAND[case]
    words = (word for word in method_cases.CASES[case] if not word.startswith("partition"))
    fleet = fleet_of(*words, *PERCEPTRON, "train.schedule.milestones=[]", *own_file)
    tier = fleet.method.tiers[:2][-1].index
    parts = fleet.parts(fleet.profile(0, 1), ClientLoad(tier, 10), 4)
    down_ns, up_ns = (5_000 + 1_000 * count if count else 0 for count in (down_bytes, up_bytes))
    assert parts == Parts(down_ns, compute_ns, up_ns)
    energy_nj = 2 * (down_ns + up_ns) + 3 * compute_ns + 1_000
    assert energy_uj(fleet.profile(0, 1), parts, 1_000) == energy_nj // 1_000


def test_fedavg_in_numbers() -> None:
    """B = 8: 8 * 128 + 10 = 1034, 8 * 16 + 10 = 138, 8 * 32 + 10 = 266 ns; in all 1438, a step 1000 + 3 * 1438 = 5314.
    B = 2: 266, 42, 74 (12 * 2 + 36 = 60 numbers in 60 ns, 64 MACs); together 382, a step 2146. Two updates 860 each.
    """
    assert BY_HAND["fedavg"][2] == 5314 + 2146 + 2 * 860 == 9180


def test_vectors_that_are_not_full_take_as_long(tmp_path: Path) -> None:
    """16 lanes: the 8 channels of the first layer count twice, the 4 of the second four times; a ReLU has none.
    B = 8: 2048 + 10, 138, 1024 + 10, together 3230, a step 10690. B = 2: 522, 42, 266, together 830, a step 3490.
    """
    wide = file_of(tmp_path, ROW.replace("slow,1,1,", "wide,1,16,"))
    fleet = fleet_of("method.name=fedavg", *PERCEPTRON, "train.momentum=0.9", *wide)
    assert fleet.parts(fleet.profile(0, 1), ClientLoad(0, 10), 4).compute_ns == 10_690 + 3_490 + 2 * 5 * PARAMS


def test_fedbn_sends_no_batch_norm(own_file: list[str]) -> None:
    ours, theirs = (fleet_of(f"method.name={name}", *own_file) for name in ("fedbn", "fedavg"))
    own, all_parts = (fleet.parts(fleet.profile(0, 1), ClientLoad(0, 10), 4) for fleet in (ours, theirs))
    norms = sum(module.num_features * 2 for module in theirs.method.net(0).modules() if hasattr(module, "num_features"))
    assert own.compute_ns == all_parts.compute_ns
    assert all_parts.down_ns - own.down_ns == all_parts.up_ns - own.up_ns == 4_000 * norms


def test_what_hermes_prunes_costs_nothing(tmp_path: Path, own_file: list[str]) -> None:
    """Fewer MACs and fewer bytes from round to round. Activations stay."""
    run = run_alone(tmp_path / "run", *method_cases.CASES["hermes"], "clients.per_round=8", "rounds=4", *own_file)
    first, *_, last = (sum(record["devices"]["seconds"]) for record in run.records)
    assert last < 0.9 * first


def test_a_link_that_clients_share() -> None:
    """The server is a phone: what clients download it uploads, and two clients have half of its link each."""
    server = built_in()["phone_low"]
    phone = built_in()["phone_high"]
    fleet = fleet_of("devices.name=classes", "devices.classes=[phone_high]", "devices.server=phone_low")
    costs = fleet.method.costs(ClientLoad(0))
    parts = fleet.parts(fleet.profile(0, 1), ClientLoad(0, 8), 2)
    assert parts.down_ns == phone.latency_ns + -(-costs.down_bytes * 10**9 // (server.up_bytes_per_s // 2))
    assert parts.up_ns == phone.latency_ns + -(-costs.up_bytes * 10**9 // (server.down_bytes_per_s // 2))


def test_the_servers_part_by_hand() -> None:
    """An SVD of 600 x 400: 3 * 600 * 400^2 + 10 * 400^3 = 928 million MACs, 1,500 per ns; 1,000 bytes, 100 per ns."""
    layer = FactorizedLayer("fc", 600, 400, None)
    assert server_ns(built_in()["server"], [layer], 1_000) == 618_667 + 10


def test_memory_by_hand() -> None:
    """172 parameters with gradients and momentum, and 8 + 8 + 4 activations for each of 8 examples."""
    fleet = fleet_of("method.name=fedavg", *ON_CLASSES)
    net, train = fleet.nets[0], fleet.config.train
    activations = 8 * net.activation_bytes
    assert memory_bytes(net, train, Training((), updates=1)) == 4 * 3 * PARAMS + activations
    assert memory_bytes(net, train, Training((), updates=0)) == 4 * 2 * PARAMS + activations
    assert memory_bytes(net, train, Training((), updates=1, nets_in_turn=2)) == 4 * 3 * PARAMS + activations // 2
    assert memory_bytes(net, train, Training((), updates=1, copies=2)) == 4 * 5 * PARAMS + activations
    assert fleet.needed_bytes == [4 * 3 * PARAMS + activations]
    four = fleet_of("method.name=splitmix", "method.levels=[1]", "method.atom=0.25", *ON_CLASSES)
    assert four.needed_bytes == [4 * 3 * four.nets[0].params + 8 * four.nets[0].activation_bytes // 4]


def test_what_is_not_trained_takes_memory() -> None:
    """LoRA's 144 numbers of rank 4 three times, the net's 172, and activations; not the gradients of the 172."""
    words = (word for word in method_cases.CASES["lora"] if not word.startswith("partition"))
    fleet = fleet_of(*words, *ON_CLASSES)
    assert fleet.needed_bytes[1] == 4 * (3 * 144 + PARAMS) + 8 * fleet.nets[1].activation_bytes


# What a client holds of its net beside parameters, gradients and momentum.
COPIES = {
    **dict.fromkeys(["fedavg", "hermes", "heterofl"], 0),
    **dict.fromkeys(["fedprox", "fednova", "perfedavg"], 1),
    **dict.fromkeys(["feddyn", "moon", "topk"], 2),
    **dict.fromkeys(["scaffold", "perfedavg-hf"], 3),
}


@pytest.mark.parametrize("case", COPIES)
def test_what_a_method_keeps_takes_memory(case: str) -> None:
    words = [word for word in method_cases.CASES[case] if not word.startswith(("partition", "train.momentum"))]
    fleet = fleet_of(*words, *ON_CLASSES, "train.momentum=0.9")
    largest = fleet.nets[0]
    assert fleet.needed_bytes[0] == 4 * (3 + COPIES[case]) * largest.params + 8 * largest.activation_bytes


def test_a_client_gets_the_largest_tier_that_fits(tmp_path: Path, needed: list[int]) -> None:
    memories = (needed[0], needed[0] - 1, needed[1] - 1, needed[2] - 1)
    words = [*with_memories(tmp_path, *memories), *WIDTHS, "clients.tier_assignment=fits"]
    fleet = fleet_of(*words)
    assert [fleet.tier(client, 1) for client in range(5)] == [0, 1, 2, None, 0]
    assert re.search("devices: client 3 .* has .* of memory, and training takes", refusal(fleet.check))
    record = run_alone(tmp_path / "run", *words, "devices.too_small=drop", "clients.per_round=8").records[-1]
    assert record["cohort"] == [0, 1, 2, 4, 5, 6]
    assert [draw["tier"] for draw in record["draws"]] == ["1", "0.5", "0.25", "1", "0.5", "0.25"]


@pytest.mark.parametrize("change_round", [0, 2])
def test_devices_say_whether_a_client_is_ever_dense(tmp_path: Path, change_round: int) -> None:
    """FedHM starts from factors where none is. By the blocks one is; by the devices only after a change."""
    delta = ("method.name=fedhm", "method.aggregation=delta", "method.rank_ratio=[1,0.5]")
    dense, half = fleet_of("devices.name=classes", *delta).needed_bytes
    rows = with_memories(tmp_path, *[half] * 8, dense)
    change = (f"devices.change.round={change_round}", "devices.change.share=1") if change_round else ()
    method = small_setup(tmp_path, *rows, *delta, *change, "clients.tier_assignment=fits").method
    starts_from_factors = method.published_specs([0]).keys() != method.state_specs().keys()
    assert starts_from_factors == (change_round == 0)


def test_a_tier_that_a_client_may_draw_is_checked(tmp_path: Path, needed: list[int]) -> None:
    """With this seed every client holds the tier that it draws in round 1."""
    fleet = fleet_of(*with_memories(tmp_path, *needed[:2]), *WIDTHS, "clients.tier_assignment=dynamic", "seed=8")
    assert f"devices: client 1 (with{needed[1] / 1e6}) has" in refusal(fleet.check)


def test_devices_change(tmp_path: Path, needed: list[int]) -> None:
    """From round 3 on each client has the other device with probability 1 / 2, and the tier that fits it."""
    words = ("clients.tier_assignment=fits", "devices.change.round=3", "clients.count=200", "data.num_train=400")
    fleet = fleet_of(*with_memories(tmp_path, *needed[:2]), *WIDTHS, *words)
    before = [fleet.tier(client, 2) for client in range(200)]
    after = [fleet.tier(client, 3) for client in range(200)]
    assert before == [0, 1] * 100 and after == [fleet.tier(client, 9) for client in range(200)]
    changed = [seeds.numpy_generator("device change", 0, client).random() < 0.5 for client in range(200)]
    assert [one != two for one, two in zip(before, after, strict=True)] == changed


def test_a_change_after_the_last_round_is_said() -> None:
    """It is no mistake: the run may go on later."""
    config = small_config("method.name=fedavg", "devices.name=classes", "rounds=4", "devices.change.round=5")
    assert "devices.change.round=5, but rounds is 4: no device changes in this run" in forecast(config, 1).warnings


@pytest.mark.parametrize(("deadline_s", "late"), [(0.03, 2), (0.001, 4)])
def test_a_deadline_drops_clients_before_they_are_trained(tmp_path: Path, deadline_s: float, late: int) -> None:
    """Every second client has a fast device: the others are late, or with 1 ms all; then nothing changes."""
    words = [*file_of(tmp_path, FAST_ROW, ROW), "method.name=fedavg", "clients.per_round=4", "clients.count=4"]
    (record,) = run_alone(tmp_path / "run", *words, f"devices.deadline_s={deadline_s}", "rounds=1").records
    devices = record["devices"]
    assert len(devices["late"]) == late and record["cohort"] == [0, 1, 2, 3]
    assert record["simulated_s"] == pytest.approx(deadline_s + devices["server_s"], abs=1e-12)
    for client, (turn_s, turn_j) in enumerate(zip(devices["seconds"], devices["joules"], strict=True)):
        if client in devices["late"]:
            assert (turn_s, turn_j) == (0, deadline_s)  # it waits at 1 W
    assert devices["slowest"] == (None if late == 4 else 0)
    assert devices["late_share"] == {"fast": float(late == 4), "slow": 1.0} and devices["late_tiers"] == {"1": late}
    assert (record["train_loss"] is None) == (late == 4)


@pytest.mark.parametrize("deadline", ["", "devices.deadline_s=0.02", "devices.deadline_s=0.001"])
def test_clients_that_are_late_move_and_train_nothing(tmp_path: Path, own_file: list[str], deadline: str) -> None:
    """Clients have 3 to 55 examples, so with 20 ms some are late, with 1 ms all; the plan has the same bytes."""
    words = ("method.name=fedavg", *UNEVEN, *own_file, *deadline.split(), "rounds=3")
    records = run_alone(tmp_path / "run", *words).records
    fleet = fleet_of(*words)
    sizes = saved(RunDir(tmp_path / "run").partition_path)[0].sizes
    each = fleet.method.costs(ClientLoad(0)).down_bytes
    moved_bytes = 0
    for record in records:
        on_time = [client for client in record["cohort"] if client not in record["devices"].get("late", ())]
        assert record["protocol_down_bytes"] == record["protocol_up_bytes"] == each * len(on_time)
        assert record["training_macs"] == fleet.nets[0].macs * sum(sizes[client] for client in on_time)
        moved_bytes += 2 * each * len(on_time)
    plan = forecast(small_config(*words), 1)
    assert plan.bytes_per_run == moved_bytes
    assert sum(tier.client_rounds for tier in plan.tiers) == moved_bytes / (2 * each)


def test_widths_that_are_drawn_decide_who_is_late(own_file: list[str]) -> None:
    """FjORD's widths are known before the training, so an estimate is as long as the turn."""
    words = [*method_cases.CASES["fjord"], *own_file]
    fleet = fleet_of(*words)
    tasks = [Task(client, 0, 1, "train", 15, 0.0, cohort_size=4) for client in range(8)]
    loads = [ClientLoad.of(Client(task, {}, np.arange(15), 0)) for task in tasks]
    turns = [fleet.turn(task, load, fleet.method.costs(load)).ns for task, load in zip(tasks, loads, strict=True)]
    assert len(set(turns)) > 2
    for turn in turns:
        strict = fleet_of(*words, f"devices.deadline_s={turn / 1e9}")
        assert [strict.is_late(task) for task in tasks] == [other > turn for other in turns]


def test_a_round_by_hand(own_file: list[str]) -> None:
    """Two phases: 5 s, then 3 s; who is done before waits at 1 W. The server adds up 3 * (1,000 + state) bytes."""
    fleet = fleet_of("method.name=fedavg", *own_file)
    tasks = [Task(client, 0, 1, phase, 10, 0.0) for client, phase in enumerate("aab")]
    turns = [Spent(5 * 10**9, 7), Spent(10**9, 0), Spent(3 * 10**9, 0)]
    record, since = fleet.round_record(tasks, turns, 1_000, Spent(1, 2))
    state_bytes = sum(spec.nbytes for spec in fleet.method.state_specs().values())
    of_server = server_ns(fleet.server, [], 3 * (1_000 + state_bytes))
    assert since.ns == 1 + 8 * 10**9 + of_server
    assert since.uj == 2 + 7 + 4 * 10**6 + of_server * 300_000 // 10**6
    assert record["simulated_total_s"] == since.ns / 1e9 and record["devices"]["slowest"] == 0
    assert record["devices"]["idle_share"] == 4 / 13 and record["devices"]["joules"] == [7e-6, 4.0, 0.0]


def test_simulated_time_goes_on_after_a_resume(tmp_path: Path) -> None:
    words = ("devices.name=lognormal", "devices.deadline_s=0.13", "train.momentum=0.9")
    whole = run_alone(tmp_path / "whole", *words, "rounds=3")
    run_alone(tmp_path / "parts", *words, "rounds=1")
    assert run_alone(tmp_path / "parts", *words, "rounds=3", resume=True) == whole
    saved = checkpoint.load(RunDir(tmp_path / "whole").checkpoints()[0][1])
    assert saved.simulated["ns"] / 1e9 == whole.records[-1]["simulated_total_s"]


def test_a_run_does_not_continue_with_other_devices(tmp_path: Path) -> None:
    words = with_memories(tmp_path, 10**9)
    run_alone(tmp_path / "run", *words, "rounds=1")
    with_memories(tmp_path, 5 * 10**8)
    line = refusal(run_alone, tmp_path / "run", *words, "rounds=2", resume=True)
    assert "devices.path: holds other devices" in line


def test_a_clock_changes_no_bits(tmp_path: Path) -> None:
    off = run_alone(tmp_path / "off", "rounds=2")
    on = run_alone(tmp_path / "on", "rounds=2", "devices.name=classes")
    assert off.server == on.server
    assert all(with_clock | without == with_clock for with_clock, without in zip(on.records, off.records, strict=True))


def test_the_fleet_is_drawn_by_shares() -> None:
    fleet = fleet_of("devices.name=classes", "devices.shares=[1,2,7]", "clients.count=1000", "data.num_train=2000")
    names = [fleet.profile(client, 1).name for client in range(1000)]
    edges = list(accumulate(names.count(name) for name in ("phone_high", "phone_mid", "phone_low")))
    assert edges == [pytest.approx(100, abs=30), pytest.approx(300, abs=45), 1000]


def test_a_lognormal_fleet_has_its_median() -> None:
    fleet = fleet_of("devices.name=lognormal", "clients.count=1000", "data.num_train=2000", "devices.spread=0.5")
    speeds = sorted(fleet.profile(client, 1).macs_per_s for client in range(1000))
    assert speeds[500] / built_in()["phone_mid"].macs_per_s == pytest.approx(1, abs=0.06)
    assert speeds[841] / speeds[500] == pytest.approx(1.65, abs=0.15)  # e^0.5 at a standard deviation


MISTAKES: dict[str, tuple[str, str]] = {
    "empty": ("", "has the columns ; expected a CSV file with the columns class,gmacs_per_s,"),
    "column": (HEAD.replace("step_us,", "") + "\n" + ROW, "has the columns class,gmacs_per_s,lanes,memory_gb_per_s,"),
    "rows": (HEAD, "no device"),
    "text": (
        f"{HEAD}\n{ROW}\n{ROW.replace(',1,4,', ',1,fast,')}",
        "line 3: memory_gb_per_s is 'fast'; allowed: a number from 1e-06 to 1e+09, optionally followed by p, d or a",
    ),
    "negative": (f"{HEAD}\n{ROW.replace('0.005', '-1')}", "latency_ms is '-1'; allowed: a number from 0 to"),
    "empty cell": (f"{HEAD}\n\n{ROW.replace(',1,4,', ',,4,')}", "line 3: lanes is ''; allowed:"),
    "semicolons": (f"{HEAD}\n{ROW}".replace(",", ";"), "has the columns class;gmacs_per_s;"),
    "short": (f"{HEAD}\nslow,1", "line 2: other than 13 cells"),
    "long": (f"{HEAD}\n{ROW},7", "line 2: other than 13 cells"),
    "twice": (f"{HEAD},lanes\n{ROW},7", "wait_w,lanes; expected a CSV file"),
    "half a lane": (
        HEAD + "\n" + ROW.replace("slow,1,1", "slow,1,2.5"),
        "lanes is '2.5'; allowed: a whole number from 1 to",
    ),
    "no lane": (HEAD + "\n" + ROW.replace("slow,1,1", "slow,1,0"), "lanes is '0'; allowed: a whole number from 1 to"),
    "underscore": (HEAD + "\n" + ROW.replace("slow,1,", "slow,1_0,"), "gmacs_per_s is '1_0'; allowed:"),
    "infinite": (HEAD + "\n" + ROW.replace("slow,1,", "slow,inf,"), "gmacs_per_s is 'inf'; allowed:"),
    "letters": (HEAD + "\n" + ROW.replace("slow,1,", "slow,1aa,"), "gmacs_per_s is '1aa'; allowed:"),
    "digits": (HEAD + "\n" + ROW.replace("slow,1,", "slow,\u0661,"), "gmacs_per_s is '\u0661'; allowed:"),
    "picture": ("\udc89PNG\n\udcff", "expected a CSV file with the columns class,gmacs_per_s,"),
}


def test_each_number_says_where_it_is_from() -> None:
    folder = files("fedmpi.devices")
    page = (folder / "README.md").read_text()
    for line in (folder / "profiles.csv").read_text().splitlines()[1:]:
        name, *numbers = line.split(",")
        assert f"`{name}`" in page
        assert all(number[-1] in "pda" and float(number[:-1]) >= 0 for number in numbers)
    assert list(built_in()) == list(get_args(DeviceClass))


@pytest.mark.parametrize("case", MISTAKES)
def test_an_odd_file_is_one_line(tmp_path: Path, case: str) -> None:
    text, expected = MISTAKES[case]
    (tmp_path / "devices.csv").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert expected in refusal(lambda: read(str(tmp_path / "devices.csv")))


def test_the_files_of_names_can_be_ones_own(tmp_path: Path) -> None:
    """A copy of `profiles.csv`, whose numbers have letters behind them."""
    (tmp_path / "devices.csv").write_text((files("fedmpi.devices") / "profiles.csv").read_text())
    assert read(str(tmp_path / "devices.csv"))[0] == tuple(built_in().values())


SETTINGS = {
    "devices.name": "devices.deadline_s=3",
    "devices.shares": "devices.name=classes devices.shares=[0.5]",
    "devices.shares .*with .*classes, but that is lognormal": "devices.name=lognormal devices.shares=[0.2,0.3,0.5]",
    "devices.classes .*goes with devices.name=classes": "devices.name=lognormal devices.classes=[server]",
    "devices.median .*goes with devices.name=lognormal": "devices.name=classes devices.median=server",
    "devices.spread .*goes with devices.name=lognormal": "devices.name=classes devices.spread=1",
    "devices.path .*goes with devices.name=file": "devices.name=classes devices.path=a.csv",
    "devices.path": "devices.name=file",
    "devices.change.round": "devices.name=classes devices.classes=[server] devices.change.round=2",
    "clients.tier_assignment": "clients.tier_assignment=fits",
    "clients.tier_blocks": (
        "devices.name=classes clients.tier_assignment=fits clients.tier_blocks=[8] method.name=fedavg"
    ),
}


@pytest.mark.parametrize("key", SETTINGS)
def test_settings_that_do_not_fit(key: str) -> None:
    assert re.search(key, refusal(lambda: small_config(*SETTINGS[key].split())))


def test_where_time_and_energy_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the plan, on the page, in sums over rounds, and as TensorBoard's wall clock."""
    words = ("devices.name=lognormal", "rounds=2", "output.report=true", "output.tensorboard=true")
    run_alone(tmp_path / "run", *words)
    records = read_records(RunDir(tmp_path / "run"))
    assert spent(records, "simulated_s").iloc[-1] == pytest.approx(records[-1]["simulated_total_s"])
    took = f"{short_duration(records[-1]['simulated_total_s'])}, {joules(records[-1]['simulated_total_j'])}"
    page = (tmp_path / "run" / "report" / "report.html").read_text()
    assert "Simulated time so far" in page and f"<dd>{took}</dd>" in page
    assert "Mean turn of a client" in page and "How many rounds a client held up" in page
    assert f"the run took {took}\n" in capsys.readouterr().out
    (events,) = (tmp_path / "run" / "tensorboard" / "simulated").iterdir()
    times = [event.wall_time for event in EventFileLoader(str(events)).Load() if event.step]
    assert times == [record["simulated_total_s"] for record in records]


def test_the_pages_turns_are_those_of_all_rounds() -> None:
    """Client 1 is the slowest of both rounds, client 2 is late in the second."""
    records = [
        {"cohort": [0, 1, 2], "devices": {"seconds": [1.0, 3.0, 2.0], "slowest": 1, "late": []}},
        {"cohort": [1, 2], "devices": {"seconds": [5.0, 0.0], "slowest": 1, "late": [2]}},
    ]
    turns = [[0, 1, False, False], [1, 3, True, False], [2, 2, False, False], [1, 5, True, False], [2, 0, False, True]]
    assert page._turns(records).to_numpy().tolist() == turns


def test_a_figure_by_a_clock_that_did_not_run_is_refused(tmp_path: Path) -> None:
    """Of a run with a clock and one without, the latter has no line."""
    run_alone(tmp_path / "off", "rounds=1", "method.name=fedavg")
    run_alone(tmp_path / "on", "rounds=1", "method.name=fedavg", "devices.name=classes")
    off, on = (Run(tmp_path / name) for name in ("off", "on"))
    assert "these runs have no accuracy of 1 by simulated_j" in refusal(figure_of, [off], x="simulated_j")
    (panel,) = panels(grouped([off, on]), (), "simulated_s", "accuracy")
    assert [len(line.x) for line in panel.lines.values()] == [1]


# Methods whose time is a matter of seeds and sizes; Hermes prunes, and hetlora drops ranks, by what training finds.
EXACT = [case for case in method_cases.CASES if case.partition("-")[0] not in ("hermes",) and case != "lora-hetlora"]


DEADLINE = "devices.deadline_s=0.13"
HELD_OUT = "evaluation.on=validation"  # the partition alone would say other sizes
PLANNED = [(case, deadline) for case in EXACT for deadline in ("", DEADLINE)] + [("fedavg", HELD_OUT)]
IN_CI = [(case, deadline) for case, deadline in PLANNED if "-" not in case or case == "lgfedavg-pretrained"]
# Nets of several sizes, drawn widths, two phases, two kinds of rounds, and what travels that is no net.
FAST = (("fedhm", ""), ("fjord", DEADLINE), ("fdnnc", DEADLINE), ("lgfedavg", ""), ("topk", DEADLINE))
FAST += (("fedavg", HELD_OUT),)


@pytest.mark.parametrize(("case", "more"), fast(*FAST, of=PLANNED, slow=IN_CI))
def test_the_plan_has_the_runs_simulated_hours(tmp_path: Path, case: str, more: str) -> None:
    """To the nanosecond, with uneven clients that do a part of their work, whose uploads get lost, and that change."""
    words = [*method_cases.CASES[case], *UNEVEN, *more.split(), "rounds=2", "devices.name=lognormal"]
    words += ["clients.work.partial=0.5", "clients.dropout=0.2", "devices.change.round=2"]
    records = run_alone(tmp_path / "run", *words).records
    plan = forecast(small_config(*words), 1).devices
    assert plan.sizes_are_known
    assert (plan.run_s, plan.run_j) == (records[-1]["simulated_total_s"], records[-1]["simulated_total_j"])
    late = sum(len(record["devices"].get("late", ())) for record in records)
    assert plan.late_share == late / sum(len(record["cohort"]) for record in records)


def test_a_plan_without_the_data_takes_the_mean(tmp_path: Path) -> None:
    words = ("data.name=cifar10", f"data.root={tmp_path}", "model.name=resnet18", "model.width=0.125", "rounds=2")
    skewed = ("partition.name=class_dirichlet", "partition.alpha=0.5", "devices.name=classes")
    text = str(forecast(load(None, [*words, *skewed]), 1)).replace("\n", " ")
    assert "if all clients have the mean number of examples (the data say it)" in text


def test_the_plan_groups_devices_by_class(tmp_path: Path) -> None:
    """Six rows of two classes: a row for each tier and class, from the fastest to the slowest device of the class."""
    rows = [ROW.replace("slow,1,", f"{name},{speed},") for name in ("a", "b") for speed in (1, 2, 4)]
    words = ("method.name=heterofl", "method.widths=[1,0.5]")
    plan = forecast(small_config(*words, *file_of(tmp_path, *rows), "rounds=1"), 1).devices
    assert [(turn.tier, turn.device) for turn in plan.turns] == [("1", "a"), ("1", "b"), ("0.5", "a"), ("0.5", "b")]
    assert all(turn.turn_s[0] < turn.turn_s[1] for turn in plan.turns)
    last = plan.lines()[-1]
    assert last.startswith(f"on these devices the run takes {short_duration(plan.run_s)}")
    assert f"client {plan.slowest_client} ({plan.slowest_device}) is the slowest" in last
    lognormal = forecast(small_config(*words, "devices.name=lognormal"), 1).devices
    assert [turn.device for turn in lognormal.turns] == ["lognormal"] * 2


def test_the_plan_says_in_which_rounds_nobody_is_done(own_file: list[str]) -> None:
    config = small_config("method.name=fedavg", "rounds=30", "devices.deadline_s=0.001", *own_file)
    plan = forecast(config, 1)
    assert plan.devices.late_share == 1
    line = "in 30 of 30 rounds (the first: 1) nobody is done within devices.deadline_s: nothing changes then"
    assert line in str(plan.warnings)


def test_the_plan_says_what_does_not_fit(tmp_path: Path) -> None:
    words = [*with_memories(tmp_path, 10**6, 10**3), *WIDTHS]
    warnings = forecast(small_config(*words, "devices.too_small=drop"), 1).warnings
    assert any("training tier 0.25 takes" in line and "with0.001" in line for line in warnings)
    assert not any("a run is refused" in line for line in warnings)
    warnings = forecast(small_config(*words, "clients.tier_assignment=fits"), 1).warnings
    (refused,) = (line for line in warnings if "a run is refused" in line)
    assert "devices.too_small=drop" in refused and "tier_assignment=fits" not in refused.partition("; ")[2]


def test_the_plan_says_whom_a_deadline_leaves_out(tmp_path: Path) -> None:
    """As the run's records have it: every second client has the slow device, and the wide tier is later."""
    words = [*file_of(tmp_path, FAST_ROW, ROW), "clients.per_round=8", "rounds=2"]
    words += ["method.name=heterofl", "method.widths=[1,0.5]", "devices.deadline_s=0.02"]
    records = [record["devices"] for record in run_alone(tmp_path / "run", *words).records]
    plan = forecast(small_config(*words), 1).devices
    shares = dict(plan.late_shares)
    assert "class fast" not in shares
    assert shares["class slow"] == sum(record["late_share"]["slow"] for record in records) / 2
    assert 0 < shares["tier 1"] == sum(record["late_tiers"]["1"] for record in records) / 8 < 1
    (line,) = [line for line in plan.lines() if "of turns are late" in line]
    assert f"{100 * shares['class slow']:.0f} % of class slow" in line and "% of tier 1" in line


def test_where_tiers_fit_the_plan_says_who_is_left_out(tmp_path: Path, needed: list[int]) -> None:
    """3 of 8 clients hold no tier, from round 2 on others; that a device cannot hold every tier is as it should be."""
    words = [*with_memories(tmp_path, needed[0], needed[2] - 1, needed[1]), *WIDTHS]
    words += ["clients.tier_assignment=fits", "devices.too_small=drop", "rounds=2", "clients.per_round=8"]
    warnings = forecast(small_config(*words), 1).warnings
    assert "devices.too_small=drop: 3 of 8 clients hold no tier, and take no part" in warnings
    assert not any("training tier" in line for line in warnings)
    changes = forecast(small_config(*words, "devices.change.round=2", "devices.change.share=1"), 1).warnings
    assert any("drop: from round 2 on " in line for line in changes)


def test_a_refusal_of_a_method_with_one_tier(tmp_path: Path) -> None:
    """It names one number, and `fits` only where a smaller tier would fit."""
    line = refusal(fleet_of(*with_memories(tmp_path, 10**3), "method.name=fedavg").check)
    assert line.endswith("take smaller tiers or batches, or devices.too_small=drop")
    assert "kB; take" in line and " to " not in line


def test_prisms_times_follow_from_each_other() -> None:
    """Table 11 of arXiv:2208.13141, ResNet-18 with `method.cut_inputs` on one GTX 1080: each of its five times follows
    from the others by the clock and by a + b MACs within 5 %, and from MACs alone by no means: 0.2 has 6 % of the MACs
    and 56 % of the time. So the clock has fixed costs and traffic beside its MACs.
    """
    cases = bench["table_11"]()
    assert [case.turn_s for case in cases] == [31.41, 28.39, 23.53, 20.21, 17.55]
    assert cases[-1].net.macs / cases[0].net.macs == pytest.approx(0.06, abs=0.001)
    clock, line, macs = ([abs(error) for error in errors] for errors in zip(*bench["left_out"](cases), strict=True))
    assert max(clock) < 0.05 and max(line) < 0.05 < 0.8 < max(macs)


@pytest.mark.parametrize(("setting", "ratio"), [("cifar10", 3.15), ("har", 1.36)])
def test_hermess_ratios_by_the_clock(setting: str, ratio: float) -> None:
    """On a phone; the page has them. A cut net of 30 % of the parameters."""
    ratios = bench["hermes_ratios"](setting, "phone_mid")
    assert ratios["latency"] == pytest.approx(ratio, abs=0.01)
    assert ratios["energy"] == pytest.approx(ratios["latency"], rel=1e-3)
    assert ratios["parameters"] == pytest.approx(3.33, abs=0.01)
