"""What the tests on a real Slurm share: one cluster for all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from slurm_cluster import Cluster, why_not


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    reason = why_not()
    if reason:
        pytest.skip(f"no Slurm: {reason}")
    with Cluster() as running:
        yield running
