"""What the tests on a real Slurm share: one cluster for all."""

import os
import shutil
from collections.abc import Iterator

import pytest
from slurm_cluster import Cluster, why_not


@pytest.fixture(scope="session")
def started() -> Iterator[Cluster]:
    reason = why_not()
    if reason and os.environ.get("FEDMPI_NEEDS_SLURM"):
        pytest.fail(f"FEDMPI_NEEDS_SLURM is set, and there is no Slurm: {reason}")
    if reason:
        pytest.skip(f"no Slurm: {reason}")
    with Cluster() as running:
        yield running


@pytest.fixture
def cluster(started: Cluster) -> Iterator[Cluster]:
    """Jobs of a test that failed end with it, and no test sees the runs of another one."""
    yield started
    started.end_jobs()
    shutil.rmtree(started.project / "runs", ignore_errors=True)
