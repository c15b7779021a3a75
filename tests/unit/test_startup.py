"""What is refused or said before a run begins: one line each, on the keys that matter."""

from pathlib import Path

import numpy as np
import pytest
from data_fixtures import refusal
from golden_file import Told
from small_runs import run_alone, small_config

from fedmpi.config.load import load
from fedmpi.data.partition import Partition, saved
from fedmpi.errors import StartupError
from fedmpi.mpi.communicator import SerialComm
from fedmpi.running import start
from fedmpi.running.folder import RunRequest, open_run_dir
from fedmpi.store.run_dir import RunDir

TO_ONE_VALUE = ("model.blocks=[1,1,1,1]",)  # 8 x 8 inputs end at 1 x 1


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("clients.count=120", "partition.name=iid"), "; .* fewer clients where one has a single example"),
        (("train.batch_size=1",), "; take larger batches"),
        (("evaluation.batch_size=1",), ""),
        (("data.num_test=1",), ""),
    ],
)
def test_single_values_cannot_be_normalized(overrides: tuple[str, ...], words: str) -> None:
    """Refused where BatchNorm would meet one value per channel; the same with two stages (4 x 4 at the end) is fine."""
    with pytest.raises(StartupError, match=f"a batch of 1.: BatchNorm gets a single value{words}"):
        start.load_material(small_config(*TO_ONE_VALUE, *overrides), SerialComm())
    start.load_material(small_config(*overrides), SerialComm())


def test_a_model_that_cannot_take_the_data_is_one_line(told: Told) -> None:
    config = small_config("model.name=torchvision:inception_v3", "data.shape=[3,8,8]", "method.name=fedavg")
    told(refusal(lambda: start.check_model(config, config.data.info())), r"(?<=batch of 2\): ).*")


def test_another_partition_is_refused(tmp_path: Path, told: Told) -> None:
    """A resumed run must find the partition that it was begun with."""
    run_alone(tmp_path / "run", "rounds=1")
    folder = RunDir(tmp_path / "run")
    made, digest = saved(folder.partition_path)
    other = Partition(np.roll(made.indices, 1), made.offsets)
    folder.partition_path.write_bytes(other.packed(digest))
    told(refusal(run_alone, tmp_path / "run", "rounds=2", resume=True))


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ((), "fedhm-resnet18-digits-seed0"),
        (("model.name=torchvision:vgg11", "seed=3"), "fedhm-vgg11-digits-seed3"),
        (("method.name=broken_methods:Raises",), "Raises-resnet18-digits-seed0"),
    ],
)
def test_a_run_without_a_file_is_named_after_what_it_runs(tmp_path: Path, words: tuple[str, ...], name: str) -> None:
    config = load(None, [*words, f"output.dir={tmp_path}"])
    folder = open_run_dir(config, SerialComm(), RunRequest(), resume=False).path
    assert folder.name.startswith(f"{name}-2") and folder.parent == tmp_path
