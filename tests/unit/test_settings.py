"""The one list of what is a setting of a run and what is a place or a convenience."""

import pytest
from small_runs import small_config

from fedmpi.config.settings import is_setting, settings


@pytest.mark.parametrize(
    ("path", "decides"),
    [
        (("train", "lr"), True),
        (("mpi", "threads"), True),
        (("mpi", "device"), True),
        (("mpi", "exchange"), False),
        (("output", "dir"), False),
        (("data", "root"), False),
        (("data", "path"), False),
        (("data", "num_train"), True),
        (("method", "path"), True),
        (("seed",), False),
        (("rounds",), True),
    ],
)
def test_settings_decide_results_and_places_do_not(path: tuple[str, ...], decides: bool) -> None:
    assert is_setting(path) == decides


def test_settings_of_a_config_are_its_dotted_keys() -> None:
    config = small_config("method.name=fedavg", "train.lr=0.25", "output.dir=elsewhere")
    found = settings(config.to_dict())
    assert found["train.lr"] == "0.25" and found["method.name"] == "fedavg"
    assert "output.dir" not in found and "seed" not in found and "mpi.threads" in found
    other = small_config("method.name=fedavg", "train.lr=0.25", "seed=7", "output.keep_checkpoints=5")
    assert settings(other.to_dict()) == found
