"""Whole runs that diverge: what becomes of the server's state, what the record says, and how a run ends that must."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from small_runs import run_all, small_config, small_setup

from fedmpi import methods
from fedmpi.errors import DivergenceError, RoundError
from fedmpi.mpi.serial import SerialComm
from fedmpi.report.records import read_records
from fedmpi.store import checkpoint
from fedmpi.store.checkpoint import Snapshot
from fedmpi.store.run_dir import RunDir
from fedmpi.store.stored import digest_of

# With SVDs on the server (fedhm, prism), memories (hermes, topk), none of it (fedavg).
METHODS = ("fedavg", "fedhm", "prism", "hermes", "topk")
POLICIES = ("drop", "upload_last_finite")


def newest(folder: Path) -> Snapshot:
    found = checkpoint.load_newest_intact(RunDir(folder), pytest.fail)
    assert found is not None
    return found


def is_finite(params: dict[str, torch.Tensor]) -> bool:
    return all(bool(value.isfinite().all()) for value in params.values())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("method", METHODS)
def test_every_client_diverges_in_every_round(tmp_path: Path, capfd, method: str, policy: str) -> None:
    """A learning rate of 1e12: every client of the cohort is named, every checkpoint is finite, the run ends well."""
    words = (f"method.name={method}", "train.lr=1e12", f"train.on_divergence={policy}", "output.progress=plain")
    words += ("rounds=2", "output.keep_checkpoints=5")
    run_all(small_config(*words), SerialComm(), tmp_path)
    records = read_records(RunDir(tmp_path))
    for record in records:
        cohort, dropped, restored = (record.get(key, []) for key in ("cohort", "dropped", "restored"))
        assert sorted(dropped + restored) == sorted(cohort), record
        assert not restored or policy == "upload_last_finite"
        assert record["train_loss"] is None or math.isfinite(record["train_loss"])
    for _, path in RunDir(tmp_path).checkpoints():
        assert is_finite(dict(checkpoint.load(path).server))
    is_unchanged = all(len(record["dropped"]) == len(record["cohort"]) for record in records)
    assert capfd.readouterr().out.count("the training of all its clients diverged") == 2 * is_unchanged
    if is_unchanged:
        initial = small_setup(tmp_path / "other", *words).method.initial_state()
        assert digest_of(newest(tmp_path).server) == digest_of(initial)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_server_that_takes_the_step_itself(tmp_path: Path, policy: str) -> None:
    """FD-NNC's clients send healthy gradients, of which this learning rate makes parameters that nobody can train."""
    words = ("method.name=fdnnc", "train.lr=1e12", f"train.on_divergence={policy}", "rounds=2")
    run_all(small_config(*words), SerialComm(), tmp_path)
    first, second = read_records(RunDir(tmp_path))
    assert set(first["dropped"]) < set(first["cohort"]) and second["dropped"] == second["cohort"] != []
    server = dict(newest(tmp_path).server)
    assert is_finite(server) and max(float(value.abs().max()) for value in server.values()) > 1e9


@pytest.mark.parametrize("step", ["update", "refresh"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_server_state_that_is_not_finite_ends_the_run_unsaved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, value: float
) -> None:
    """As from an SVD that went wrong: one number, in the last round; the checkpoint before stays the newest."""
    config = small_config("method.name=fedavg", "rounds=2")
    calls, create = [], methods.create

    def make(context: methods.MethodContext) -> methods.Method:
        method = create(context)
        healthy = getattr(method, step)

        def spoilt(*args: object) -> dict[str, torch.Tensor]:
            calls.append(step)
            state = {name: tensor.clone() for name, tensor in healthy(*args).items()}
            if len(calls) == 2:
                state["fc.bias"][1] = value
            return state

        monkeypatch.setattr(method, step, spoilt)
        return method

    monkeypatch.setattr("fedmpi.methods.create", make)
    with pytest.raises(RoundError) as caught:
        run_all(config, SerialComm(), tmp_path)
    cause = caught.value.__cause__
    assert isinstance(cause, DivergenceError) and "the server's state is not finite any more (in fc.bias)" in str(cause)
    found = newest(tmp_path)
    assert found.round == 1 and is_finite(dict(found.server)) and len(read_records(RunDir(tmp_path))) == 1


def test_fail_names_the_client(tmp_path: Path) -> None:
    with pytest.raises(RoundError) as caught:
        run_all(small_config("method.name=fedhm", "train.lr=1e12"), SerialComm(), tmp_path)
    assert (caught.value.stage, caught.value.round_number) == ("local_training", 1) and caught.value.client is not None
    assert isinstance(caught.value.__cause__, DivergenceError) and read_records(RunDir(tmp_path)) == []
