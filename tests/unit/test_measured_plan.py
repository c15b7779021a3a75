"""`fedmpi plan --measure`: hours, memory and disk space by hand out of a given round; and one real round."""

import json

import pytest

from fedmpi.check.small import SMALL, small_config
from fedmpi.command.measured_plan import estimated, measured_round
from fedmpi.command.plan import main
from fedmpi.running.forecast import forecast

WORDS = ("method.name=fedavg", "clients.per_round=8", "rounds=4", "evaluation.every=2", "output.checkpoint_every=3")
SECONDS = {"submodel_creation": 0.5, "local_training": 7.5, "aggregation": 0.3, "svd": 0.2, "evaluation": 1.0}
SECONDS |= {"saving": 0.4, "wall": 9.9}
ROUND = {"device": "CPU", "seconds": SECONDS, "peak_bytes": 10**9, "checkpoint_bytes": 1000, "memory_bytes": 80}


@pytest.mark.parametrize(("ranks", "cores", "at_once"), [(1, 2, 1), (3, 2, 2), (9, 4, 4)])
def test_a_run_by_hand(ranks: int, cores: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four rounds of 8 / n + 0.5 s, two tests of 1 / n s, two saves; the eight clients' memories have 10 bytes each."""
    monkeypatch.setattr("fedmpi.mpi.mpirun.cores", lambda: cores)
    config = small_config(*WORDS)
    found = estimated(config, forecast(config, ranks), ROUND)
    assert found["workers_at_once"] == at_once
    assert found["round_s"] == pytest.approx(8 / at_once + 0.5 + 1 / at_once + 0.4)
    assert found["hours"] == pytest.approx((4 * (8 / at_once + 0.5) + 2 / at_once + 2 * 0.4) / 3600)
    assert found["disk_bytes"] == 2 * 1000 + (config.clients.count + 2 * 8) * 10


@pytest.mark.parametrize("method", ["fedhm", "standalone"])
def test_one_real_round_is_measured(method: str) -> None:
    config = small_config(f"method.name={method}", "rounds=7", "evaluation.every=7")
    found = measured_round(config)
    assert all(found["seconds"][stage] > 0 for stage in ("local_training", "evaluation", "saving", "wall"))
    assert found["checkpoint_bytes"] > 0 and (found["memory_bytes"] > 0) == (method == "standalone")


def test_the_text_and_the_json_have_the_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL, *WORDS, "rounds=4", "--measure"]
    assert main(words) == 0
    assert "expected with 1 worker at once" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rounds"] == 4 and found["measured"]["hours"] > 0
