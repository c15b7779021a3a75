"""Every method in a small federation, taken through its first round: what the contract tests take apart."""

from collections.abc import Callable

import pytest
from method_cases import CASES

from fedmpi.check.contract import Trial


@pytest.fixture(scope="session")
def trial_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trial]:
    known: dict[str, Trial] = {}

    def make(case: str) -> Trial:
        if case not in known:
            known[case] = Trial(tmp_path_factory.mktemp(case), CASES[case])
        return known[case]

    return make
