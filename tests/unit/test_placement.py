"""Ranks to devices, with tables of GPUs that nobody needs to own."""

from contextlib import nullcontext
from typing import Any

import pytest
from golden_file import Told

from fedmpi.errors import DeviceError
from fedmpi.mpi.placement import Device, Gpu, place, resolve, resolve_server, worker_index

V100 = Gpu("Tesla V100-SXM2-32GB", 70)
A100 = Gpu("NVIDIA A100-SXM4-80GB", 80)
H200 = Gpu("NVIDIA H200", 90)
B200 = Gpu("NVIDIA B200", 100)
B300 = Gpu("NVIDIA B300", 103)
RTX5090 = Gpu("NVIDIA GeForce RTX 5090", 120)

CUDA_126 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
CUDA_128 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    ("server_here", "server_trains", "workers"),
    [(True, False, [None, 0, 1]), (True, True, [0, 1, 2]), (False, False, [0, 1, 2]), (False, True, [0, 1, 2])],
)
def test_a_server_that_does_not_train_is_no_worker(
    server_here: bool, server_trains: bool, workers: list[int | None]
) -> None:
    assert [worker_index(r, server_here=server_here, server_trains=server_trains) for r in range(3)] == workers


@pytest.mark.parametrize(
    ("want", "gpus_of_workers", "kind"),
    [
        ("auto", [1, 1, 4], "cuda"),
        ("auto", [1, 0, 1], "cpu"),
        ("auto", [0], "cpu"),
        ("auto", [], "cpu"),
        ("cpu", [4, 4], "cpu"),
        ("cuda", [0, 0], "cuda"),
    ],
)
def test_auto_means_gpus_only_if_every_worker_has_one(want: str, gpus_of_workers: list[int], kind: str) -> None:
    """A mixed job would have other bits than either kind; what is asked for is never weakened in silence."""
    assert resolve(want, gpus_of_workers) == kind


@pytest.mark.parametrize(
    ("want", "train", "gpus", "kind"),
    [
        ("auto", "cuda", 1, "cuda"),
        ("auto", "cuda", 0, "cpu"),
        ("auto", "cpu", 4, "cpu"),
        ("cpu", "cuda", 4, "cpu"),
        ("cuda", "cpu", 0, "cuda"),
    ],
)
def test_the_server_follows_the_workers_to_a_gpu_that_it_sees(want: str, train: str, gpus: int, kind: str) -> None:
    assert resolve_server(want, train, gpus) == kind


NODES = {
    "a GPU for each worker, none for a server on the CPU": ([V100] * 4, {}, "- 0 1 2 3", "- - - - -"),
    "more workers than GPUs share them in turn": ([A100, H200], {}, "- 0 1 0 1", "- - - - -"),
    "Slurm's --gpus-per-task=1 masks all GPUs but one": ([A100], {}, "- 0 0 0", "- - - -"),
    "the server is on another node": ([V100] * 4, {"server_here": False}, "0 1 2 3", "- - - -"),
    "a server with the GPU that no worker has": ([V100] * 3, {"server": "cuda"}, "- 0 1", "2 - -"),
    "a server that shares a worker's GPU": ([V100] * 2, {"server": "cuda"}, "- 0 1", "1 - -"),
    "a server takes no GPU of another model": ([A100, A100, V100], {"server": "cuda"}, "- 0", "1 -"),
    "a server that trains": ([V100] * 4, {"server_trains": True, "server": "cuda"}, "0 1 2", "0 - -"),
    "no GPU": ([], {}, "- - -", "- - -"),
}


@pytest.mark.parametrize(("gpus", "options", "train", "server"), NODES.values(), ids=NODES)
def test_devices_of_a_node(gpus: list[Gpu], options: dict[str, Any], train: str, server: str) -> None:
    """Of all its ranks, which see the same GPUs, by number; - is the CPU."""
    where = {"server_here": True, "server_trains": False, "server": "cpu", **options}
    servers = where.pop("server")
    kind, devices = resolve("auto", [len(gpus)]), []
    for rank in range(len(train.split())):
        of_rank = servers if rank == 0 and where["server_here"] else "cpu"
        devices.append(place(worker_index(rank, **where), gpus, train=kind, server=of_rank, built_for=CUDA_126))
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


def test_a_run_that_continues_keeps_the_server_s_kind(told: Told) -> None:
    """Whatever the ranks see now, and where that is missing it ends in a line."""
    assert resolve_server("auto", "cuda", 1) == "cuda" and resolve_server("auto", "cuda", 1, "cpu") == "cpu"
    assert resolve_server("auto", "cpu", 1) == "cpu" and resolve_server("auto", "cpu", 1, "cuda") == "cuda"
    for want in ("auto", "cuda"):
        with told.by(DeviceError):
            resolve_server(want, "cuda", 0, "cuda")


@pytest.mark.parametrize(("worker", "gpus", "train"), [(0, [V100], "cpu"), (None, [V100], "cuda"), (None, [], "cuda")])
def test_gpus_that_nobody_asked_for_are_neither_used_nor_checked(
    worker: int | None, gpus: list[Gpu], train: str
) -> None:
    """Slurm may also give rank 0's task none: as long as the server stays on the CPU, that is fine."""
    assert place(worker, gpus, train=train, server="cpu", built_for=CUDA_128) == Device("cpu", "cpu", "CPU")


@pytest.mark.parametrize(
    ("worker", "train", "server"), [(0, "cuda", "cpu"), (None, "cpu", "cuda"), (None, "cuda", "cuda")]
)
def test_a_gpu_is_asked_for_but_absent(worker: int | None, train: str, server: str) -> None:
    with pytest.raises(DeviceError, match="CUDA_VISIBLE_DEVICES.* mpi.device=cpu mpi.server_device=cpu$"):
        place(worker, [], train=train, server=server, built_for=[])


@pytest.mark.parametrize(
    ("gpu", "built_for", "runs"),
    [
        (V100, CUDA_126, True),
        (Gpu("RTX 4090", 89), CUDA_128, True),  # a binary for 8.6 runs on 8.9
        (Gpu("RTX 4090", 89), ["sm_80"], True),
        (H200, ["sm_90a"], True),
        (B300, CUDA_128, True),  # a binary for 10.0 runs on 10.3
        (Gpu("a later one", 130), CUDA_128, True),  # compute_120 is PTX, compiled at start for what is newer
        (B200, ["sm_70", "compute_90"], True),
        (V100, CUDA_128, False),
        (V100, ["sm_75", "compute_75"], False),  # neither an older GPU's own code nor PTX goes backwards
        (A100, ["sm_86"], False),
        (RTX5090, ["sm_90", "sm_100"], False),  # consumer Blackwell is another major number
        (H200, [], False),
    ],
)
def test_architectures(gpu: Gpu, built_for: list[str], runs: bool) -> None:
    with nullcontext() if runs else pytest.raises(DeviceError):
        assert place(0, [gpu], train="cuda", server="cpu", built_for=built_for).train == "cuda:0"


def test_a_v100_under_today_s_torch_is_one_line_with_the_way_out() -> None:
    with pytest.raises(DeviceError) as caught:
        place(2, [A100, A100, V100], train="cuda", server="cpu", built_for=CUDA_128)
    text = caught.value.text()
    assert "\n" not in text and caught.value.exit_code == 2
    for part in (V100.name, "sm_70", ", ".join(CUDA_128), "FEDMPI_TORCH_INDEX=https://download.pytorch.org/whl/cu126"):
        assert part in text


def test_only_the_gpu_that_is_used_is_checked() -> None:
    """A workstation with an old display card beside the one that computes."""
    assert place(0, [A100, V100], train="cuda", server="cpu", built_for=CUDA_128).train == "cuda:0"
