"""Ranks to devices, with tables of GPUs that nobody needs to own."""

from contextlib import nullcontext
from typing import Any

import pytest

from fedmpi.errors import UserError
from fedmpi.mpi.placement import Device, Gpu, place, resolve, worker_index

V100 = Gpu("Tesla V100-SXM2-32GB", 70)
A100 = Gpu("NVIDIA A100-SXM4-80GB", 80)
H200 = Gpu("NVIDIA H200", 90)

CUDA_126 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
CUDA_128 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    ("here", "server_trains", "workers"),
    [((0, 1, 2), False, [None, 0, 1]), ((0, 1, 2), True, [0, 1, 2]), ((3, 5, 6), False, [0, 1, 2])],
)
def test_a_server_that_does_not_train_is_no_worker(
    here: tuple[int, ...], server_trains: bool, workers: list[int | None]
) -> None:
    assert [worker_index(rank, here, server_trains=server_trains) for rank in here] == workers


def test_auto_means_gpus_where_there_are_some() -> None:
    assert (resolve("auto", has_gpus=True), resolve("auto", has_gpus=False)) == ("cuda", "cpu")
    assert resolve("cuda", has_gpus=False) == "cuda", "what is asked for is never weakened in silence"


NODES = {
    "a GPU for each worker, none for a server on the CPU": ([V100] * 4, {}, "- 0 1 2 3", "- - - - -"),
    "more workers than GPUs share them in turn": ([A100, H200], {}, "- 0 1 0 1", "- - - - -"),
    "Slurm's --gpus-per-task=1 masks all GPUs but one": ([A100], {}, "- 0 0 0", "- - - -"),
    "the server is on another node": ([V100] * 4, {"first": 4}, "0 1 2 3", "- - - -"),
    "a server with the GPU that no worker has": ([V100] * 3, {"server": "cuda"}, "- 0 1", "2 - -"),
    "a server that shares a worker's GPU": ([V100] * 2, {"server": "cuda"}, "- 0 1", "1 - -"),
    "a server takes no GPU of another model": ([A100, A100, V100], {"server": "cuda"}, "- 0", "1 -"),
    "a server that trains": ([V100] * 4, {"server_trains": True, "server": "cuda"}, "0 1 2", "0 - -"),
    "no GPU": ([], {}, "- - -", "- - -"),
}


@pytest.mark.parametrize(("gpus", "options", "train", "server"), NODES.values(), ids=NODES)
def test_devices_of_a_node(gpus: list[Gpu], options: dict[str, Any], train: str, server: str) -> None:
    """Of all its ranks, which see the same GPUs, by number; - is the CPU."""
    first = options.get("first", 0)
    here = range(first, first + len(train.split()))
    kind, devices = resolve("auto", has_gpus=bool(gpus)), []
    for rank in here:
        worker = worker_index(rank, here, server_trains=options.get("server_trains", False))
        of_rank = options.get("server", "cpu") if rank == 0 else "cpu"
        devices.append(place(worker, gpus, train=kind, server=of_rank, built_for=CUDA_126))
    named = {"-": "cpu", **{str(number): f"cuda:{number}" for number in range(4)}}
    assert [device.train for device in devices] == [named[place] for place in train.split()]
    assert [device.server for device in devices] == [named[place] for place in server.split()]
    used = [max(device.train, device.server) for device in devices]
    names = [f"{gpu} ({gpus[int(gpu[-1])].name})" if gpu != "cpu" else "CPU" for gpu in used]
    assert [device.description for device in devices] == names


def test_a_worker_that_lifts_does_it_on_its_own_gpu() -> None:
    """Under `exchange: reduce` workers lift, too, on `mpi.server_device`."""
    assert place(3, [V100] * 2, train="cuda", server="cuda", built_for=CUDA_126).server == "cuda:1"
    assert place(3, [V100] * 2, train="cpu", server="cuda", built_for=CUDA_126).train == "cpu"


def test_gpus_that_nobody_asked_for_are_not_checked() -> None:
    """As an old display card beside the one that computes."""
    assert place(0, [V100], train="cpu", server="cpu", built_for=CUDA_128) == Device("cpu", "cpu", "CPU")
    assert place(None, [], train="cuda", server="cpu", built_for=CUDA_128) == Device("cpu", "cpu", "CPU")
    assert place(0, [A100, V100], train="cuda", server="cpu", built_for=CUDA_128).train == "cuda:0"


@pytest.mark.parametrize(("worker", "train", "server"), [(0, "cuda", "cpu"), (None, "cpu", "cuda")])
def test_a_gpu_is_asked_for_but_absent(worker: int | None, train: str, server: str) -> None:
    with pytest.raises(UserError, match="CUDA_VISIBLE_DEVICES.* mpi.device=cpu mpi.server_device=cpu$"):
        place(worker, [], train=train, server=server, built_for=[])


@pytest.mark.parametrize(
    ("gpu", "built_for", "runs"),
    [
        (V100, CUDA_126, True),
        (Gpu("RTX 4090", 89), ["sm_80"], True),  # a binary for 8.0 runs on 8.9
        (H200, ["sm_90a"], True),
        (Gpu("a later one", 130), CUDA_128, True),  # compute_120 is PTX, compiled at start for what is newer
        (V100, CUDA_128, False),
        (V100, ["sm_75", "compute_75"], False),  # neither an older GPU's own code nor PTX goes backwards
        (A100, ["sm_86"], False),
        (Gpu("RTX 5090", 120), ["sm_90", "sm_100"], False),  # consumer Blackwell is another major number
        (H200, [], False),
    ],
)
def test_architectures(gpu: Gpu, built_for: list[str], runs: bool) -> None:
    """One line, with the way out, where torch has no code for it."""
    refusal = pytest.raises(UserError, match=f"^torch: {gpu.name} has .*sm_{gpu.capability}.*whl/cu126")
    with nullcontext() if runs else refusal:
        assert place(0, [gpu], train="cuda", server="cpu", built_for=built_for).train == "cuda:0"
