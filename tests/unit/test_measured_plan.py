"""`fedmpi plan --measure`: hours, memory and disk space by hand out of a given round; and one real round."""

import json
from dataclasses import replace

import pytest

from fedmpi.check.small import small_config
from fedmpi.command.measured_plan import MeasuredRound, estimated, measured_round, measured_text
from fedmpi.errors import ConfigError
from fedmpi.running.forecast import forecast

WORDS = ("method.name=fedavg", "clients.per_round=8", "rounds=4", "evaluation.every=2", "output.checkpoint_every=3")
SECONDS = {"submodel_creation": 0.5, "local_training": 7.5, "aggregation": 0.3, "svd": 0.2, "evaluation": 1.0}
ROUND = MeasuredRound("CPU", {**SECONDS, "saving": 0.4, "wall": 9.9}, 10**9, 1000, 80)


@pytest.mark.parametrize(("ranks", "cores", "at_once"), [(1, 2, 1), (3, 2, 2), (9, 4, 4)])
def test_a_run_by_hand(ranks: int, cores: int, at_once: int) -> None:
    """Four rounds of 8 / n + 0.5 s, two tests of 1 / n s, two saves; the eight clients' memories have 10 bytes each."""
    config = small_config(*WORDS)
    found = estimated(config, forecast(config, ranks), ROUND, cores)
    assert found.workers_at_once == at_once
    assert found.round_s == pytest.approx(8 / at_once + 0.5 + 1 / at_once + 0.4)
    assert found.hours == pytest.approx((4 * (8 / at_once + 0.5) + 2 / at_once + 2 * 0.4) / 3600)
    assert found.disk_bytes == 2 * 1000 + (config.clients.count + 2 * 8) * 10


@pytest.mark.parametrize("method", ["fedhm", "standalone"])
def test_one_real_round_is_measured(method: str) -> None:
    config = small_config(f"method.name={method}", "rounds=7", "evaluation.every=7")
    found = measured_round(config)
    assert all(found.seconds[stage] > 0 for stage in ("local_training", "evaluation", "saving", "wall"))
    assert found.checkpoint_bytes > 0 and (found.memory_bytes > 0) == (method == "standalone")


def test_the_text_and_the_json_have_the_estimate() -> None:
    config = small_config(*WORDS)
    plan = forecast(config, 3)
    assert "expected if" in measured_text(config, plan, "text")
    found = json.loads(measured_text(config, plan, "json"))
    assert found["rounds"] == 4 and found["measured"]["hours"] > 0


def test_a_run_too_large_for_this_machine_is_refused() -> None:
    config = small_config(*WORDS)
    with pytest.raises(ConfigError, match="leave --measure away"):
        measured_text(config, replace(forecast(config, 1), model_bytes_worker=10**18), "text")
