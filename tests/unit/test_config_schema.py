"""Config as a value: plain form, YAML round trip, hash and diff over the keys that change results."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from golden_file import Told

from fedmpi.config import yaml_text
from fedmpi.config.load import load
from fedmpi.config.schema import Config, settings

TEXTS = [*"1e3 no true 010 08 1_0 0x10 1:30 ~ # *x .inf 2026-01-01".split(), "", " a", "a: b"]


def config(*overrides: str) -> Config:
    return load(None, overrides)


@pytest.mark.parametrize(
    "value", [*TEXTS, 1e-5, 1e22, 0.1, float("inf"), -3, True, None, [1, [2.5]], {"layer4.*": 1}, {}, []]
)
def test_dump_and_parse_are_inverse(value: Any) -> None:
    parsed = yaml_text.parse(yaml_text.dump({"key": value})).value
    assert parsed == {"key": value} and type(parsed["key"]) is type(value)
    assert yaml_text.parse(yaml_text.flow(value)).value == value


def test_round_trip_through_yaml_and_json(tmp_path: Path) -> None:
    largest = f"seed={2**63 - 1}"
    first = config("method.tau=.inf", "method.layer_ranks={layer4.*: 8}", "output.dir='1e3'", largest)
    path = tmp_path / "config.yaml"
    path.write_text(yaml_text.dump(first.to_dict()))
    second = load(path, [])
    assert second.to_dict() == first.to_dict() and second.hash() == first.hash()
    assert second.where == str(path) and first.where.endswith("fedhm_delta_digits.yaml")
    assert second.diff(first.to_dict()) == second.diff(json.loads(json.dumps(first.to_dict()))) == []
    assert pickle.loads(pickle.dumps(first)).hash() == first.hash()


@pytest.mark.parametrize(
    "override",
    """
        rounds=3 mpi.exchange=reduce mpi.server_trains=true output.dir=x output.checkpoint_every=5
        method.tau=auto
    """.split(),
)
def test_what_a_resumed_run_may_change(override: str) -> None:
    assert config(override).hash() == config().hash()
    assert config(override).diff(config().to_dict()) == []


@pytest.mark.parametrize(
    "override",
    ["seed=1", "train.lr=0.2", "mpi.device=cuda", "mpi.server_device=cuda", "mpi.threads=2", "evaluation.bn=batch"],
)
def test_what_changes_results(override: str) -> None:
    key, _, _ = override.partition("=")
    changed, before = config(override), config("mpi.server_device=cpu")
    assert changed.hash() != before.hash()
    (line,) = [line for line in changed.diff(before.to_dict()) if line.startswith(key)]
    assert line.startswith(f"{key}: run has ")


def test_diff_says_what_run_has_and_what_is_asked(told: Told) -> None:
    saved = config("data.name=cifar10", "method.layer_ranks={a: 1}").to_dict()
    asked = config("data.name=cifar100", "data.root=elsewhere", "method.layer_ranks={b: 2}")
    told("\n".join(asked.diff(saved)))
    assert config("data.name=cifar10", "data.root=x").hash() == config("data.name=cifar10").hash()


def test_rounds_count_where_the_schedule_depends_on_them(told: Told) -> None:
    cosine = config("train.schedule.name=cosine", "rounds=10")
    assert cosine.hash() != config("train.schedule.name=cosine", "rounds=11").hash()
    told("\n".join(cosine.diff({**cosine.to_dict(), "rounds": 11})))
    told("\n".join(cosine.diff(config("rounds=10").to_dict())))
    told("\n".join(config("rounds=10").diff(cosine.to_dict())))


def test_whole_numbers_and_floats_are_one_setting() -> None:
    """A float field's default may be written 5 in a class; given as 5.0 it is the same setting."""
    assert config("train.lr=1").hash() == config("train.lr=1.0").hash()
    assert config("method.tau=5").diff({**config("method.tau=5.0").to_dict()}) == []


def test_settings_of_a_config_are_its_dotted_keys() -> None:
    """Those that decide results, so no places and no exchange."""
    found = settings(config("method.name=fedavg", "train.lr=0.25", "data.name=cifar10", "output.dir=x").to_dict())
    assert found["train.lr"] == "0.25" and found["method.name"] == "fedavg" and "mpi.threads" in found
    assert not {"output.dir", "seed", "data.root", "mpi.exchange"} & {*found}
    again = config("method.name=fedavg", "train.lr=0.25", "data.name=cifar10", "seed=7", "data.root=y")
    assert settings(again.to_dict()) == found
