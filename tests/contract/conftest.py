"""Every method in a small federation, taken through its first round: what the contract tests take apart."""

from collections.abc import Callable

import pytest
from method_cases import CASES

from fedmpi import train_round
from fedmpi.check.contract import Trial
from fedmpi.rounds import client


@pytest.fixture(scope="session")
def trial_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trial]:
    known: dict[str, Trial] = {}

    def make(case: str) -> Trial:
        if case not in known:
            known[case] = Trial(tmp_path_factory.mktemp(case), CASES[case])
        return known[case]

    return make


@pytest.fixture
def without_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds have a learning rate of 1e-30: a step leaves a float32 as it is (but for zeros, which become 1e-30)."""
    for module in (client, train_round):
        monkeypatch.setattr(module, "learning_rate", lambda *arguments: 1e-30)
