"""The project's own sbatch files on a real Slurm: to the end, on two nodes, through a requeue, as an array."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm_cluster import LIMIT_S, ROOT, Cluster
from small_runs import SMALL, Finished, finished, run_all

from fedmpi.config.load import load
from fedmpi.main import TABLES
from fedmpi.mpi import SerialComm
from fedmpi.output import RunDir, read_records
from fedmpi.output.manifest import read_starts

SHORT = (*(word for word in SMALL if not word.startswith("output.progress")), "output.progress=plain")
TOPK = (*SHORT, "method.name=topk")  # clients have a memory
NO_CONFIG = {r"^config=\(.*": "config=()"}
"""As a user edits them: the words after the file's name say all."""


def undisturbed(folder: Path, *overrides: str, config: str | None = None) -> Finished:
    """What a config comes to in one go, in this process."""
    run_all(load(config and str(ROOT / config), overrides, TABLES), SerialComm(), folder)
    return finished(folder)


def must_end_well(cluster: Cluster, job: str) -> None:
    """Waits for it."""
    for state in cluster.wait_until_left(job):
        assert (state["JobState"], state["ExitCode"]) == ("COMPLETED", "0:0"), f"{state}\n{cluster.log()}"


def wait_for(is_so: Callable[[], bool], cluster: Cluster) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline, cluster.log()
        time.sleep(0.01)


def goes_back_and_ends_well(cluster: Cluster, job: str, run_dir: RunDir, rounds: int) -> None:
    """Signalled in the middle, put back into the queue, started again, and finished."""
    cluster.control("scancel", "--signal=USR1", "--batch", job)
    wait_for(lambda: (cluster.jobs(job)[0]["JobState"], cluster.jobs(job)[0]["Restarts"]) == ("PENDING", "1"), cluster)
    assert len(finished(run_dir.path).records) < rounds
    assert run_dir.requeued_path.read_text() == f"{job} 0\n"
    cluster.start_again(job)
    must_end_well(cluster, job)
    assert not run_dir.requeued_path.exists()


def test_a_run_finishes(cluster: Cluster, tmp_path: Path) -> None:
    """Five ranks on one node."""
    job = cluster.submit("slurm/one_node_4gpu.sbatch", *TOPK, edits=NO_CONFIG)
    must_end_well(cluster, job)
    assert finished(cluster.project / "runs" / f"fedmpi-4gpu-{job}") == undisturbed(tmp_path, *TOPK)
    log = (cluster.project / f"fedmpi-4gpu-{job}.log").read_text()
    assert len(re.findall(r"^rank \d: ", log, re.MULTILINE)) == 5, log


def test_two_nodes(cluster: Cluster, tmp_path: Path) -> None:
    """Rank 0 and four workers on the first, four on the second: each worker is one of four on its node."""
    job = cluster.submit("slurm/several_nodes.sbatch", *TOPK, edits=NO_CONFIG)
    must_end_well(cluster, job)
    assert finished(cluster.project / "runs" / f"fedmpi-nodes-{job}") == undisturbed(tmp_path, *TOPK)
    script = "import os; print('on', os.environ['SLURMD_NODENAME'], os.environ['OMPI_COMM_WORLD_RANK'])"
    edits = {r"^(resumable mpirun .*)python -m fedmpi\.main .*\n.*": rf'\1python -c "{script}"'}
    job = cluster.submit("slurm/several_nodes.sbatch", edits=edits)
    must_end_well(cluster, job)
    log = (cluster.project / f"fedmpi-nodes-{job}.log").read_text()
    places = {int(rank): node for node, rank in re.findall(r"^on (\S+) (\d)$", log, re.MULTILINE)}
    assert places == {rank: cluster.host + "2" * (rank >= 5) for rank in range(9)}, log


def test_a_signalled_run_goes_on_after_its_requeue(cluster: Cluster, tmp_path: Path) -> None:
    """To the bits of one that was left alone. No checkpoint comes before the last round by itself."""
    words = (*TOPK, "rounds=40", "output.checkpoint_every=1000", "evaluation.every=5")
    job = cluster.submit("slurm/long_resumable.sbatch", *words, edits=NO_CONFIG)
    run_dir = RunDir(cluster.project / "runs" / "fedmpi-long")
    wait_for(lambda: len(read_records(run_dir)) >= 2, cluster)
    goes_back_and_ends_well(cluster, job, run_dir, 40)
    first, second = read_starts(run_dir)
    assert first["stopped"]["why"] == "SIGUSR1" and second["resumed_round"] == first["stopped"]["round"]
    assert finished(run_dir.path) == undisturbed(tmp_path, *words)
    log = (cluster.project / f"fedmpi-long-{job}.log").read_text()
    assert f"requeued: job {job} goes on from what is saved" in log and "stopped by" not in log, log


def test_a_job_that_lost_a_rank_is_requeued_all_the_same(cluster: Cluster, tmp_path: Path) -> None:
    """Under ULFM: a worker dies and the others go on; then the signal; requeued, all ranks are there again."""
    words = (*TOPK, "rounds=60", "output.checkpoint_every=1000", "evaluation.every=5")
    edits = {**NO_CONFIG, r"^resumable mpirun ": "resumable mpirun --with-ft ulfm "}
    job = cluster.submit("slurm/long_resumable.sbatch", *words, edits=edits, options=["--job-name=lost"])
    run_dir = RunDir(cluster.project / "runs" / "lost")
    wait_for(lambda: len(read_records(run_dir)) >= 2, cluster)
    os.kill(rank_of_job(job, 2), signal.SIGKILL)
    wait_for(lambda: any("losses" in record for record in read_records(run_dir)), cluster)
    goes_back_and_ends_well(cluster, job, run_dir, 60)
    first, second = read_starts(run_dir)
    assert [loss["rank"] for loss in first["losses"]] == [2] and first["stopped"]["why"] == "SIGUSR1"
    assert len(second["ranks"]) == len(first["ranks"]) and "losses" not in second
    assert finished(run_dir.path) == undisturbed(tmp_path, *words)


def rank_of_job(job: str, rank: int) -> int:
    """The process number of a rank."""
    wanted = {f"SLURM_JOB_ID={job}".encode(), f"OMPI_COMM_WORLD_RANK={rank}".encode()}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                return int(entry.name)
    raise AssertionError(f"job {job} has no rank {rank}")


def test_without_requeueing_it_ends_with_75(cluster: Cluster) -> None:
    """The time is over after the first round; submitted again, it goes on."""
    options = ("--job-name=again", "--export=ALL,FEDMPI_REQUEUE=no")
    for number in (1, 2):
        words = (*TOPK, "rounds=3", "mpi.time_limit_s=0.001")
        job = cluster.submit("slurm/long_resumable.sbatch", *words, edits=NO_CONFIG, options=options)
        (state,) = cluster.wait_until_left(job)
        assert (state["JobState"], state["ExitCode"]) == ("FAILED", "75:0"), cluster.log()
        assert len(finished(cluster.project / "runs" / "again").records) == number


def test_an_array_makes_all_its_runs(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit("slurm/sweep_array.sbatch", *SHORT, "rounds=2")
    must_end_well(cluster, job)
    runs = [cluster.project / "runs" / "fedmpi-sweep" / str(number) for number in range(4)]
    assert [len(finished(run).records) for run in runs] == [2, 2, 2, 2]
    expected = undisturbed(tmp_path, "seed=1", *SHORT, "rounds=2", config="configs/heterofl_digits.yaml")
    assert finished(runs[3]) == expected != finished(runs[2])


def test_a_task_goes_back_into_the_queue_alone(cluster: Cluster) -> None:
    """Of the task that has the array's own number: its requeue leaves the other one running, to its end."""
    words = (*SHORT, "rounds=60", "output.checkpoint_every=1000", "evaluation.every=20")
    options = ("--array=0-1", "--job-name=alone")
    job = cluster.submit("slurm/sweep_array.sbatch", *words, options=options)
    runs = [RunDir(cluster.project / "runs" / "alone" / str(task)) for task in range(2)]
    wait_for(lambda: all(len(read_records(run)) >= 2 for run in runs), cluster)
    (namesake,) = (int(task["ArrayTaskId"]) for task in cluster.jobs(job) if task["JobId"] == job)
    cluster.control("scancel", "--signal=USR1", "--batch", f"{job}_{namesake}")
    wait_for(lambda: "1" in [task["Restarts"] for task in cluster.jobs(job)], cluster)
    cluster.start_again(f"{job}_{namesake}")
    must_end_well(cluster, job)
    assert [len(finished(run.path).records) for run in runs] == [60, 60]
    starts = [len(read_starts(run)) for run in runs]
    assert starts == ([2, 1] if namesake == 0 else [1, 2]), cluster.log()


def test_with_srun(cluster: Cluster, tmp_path: Path) -> None:
    """The alternative that the files name."""
    if "pmix" not in cluster.control("srun", "--mpi=list"):
        pytest.skip("this Slurm has no PMIx (libpmix-dev must be there before it starts)")
    edits = {**NO_CONFIG, r"^resumable mpirun -n \S+ --map-by slot": "resumable srun --mpi=pmix"}
    job = cluster.submit("slurm/cpu.sbatch", *TOPK, edits=edits, options=["--ntasks=3", f"--nodelist={cluster.host}"])
    must_end_well(cluster, job)
    assert finished(cluster.project / "runs" / f"fedmpi-cpu-{job}") == undisturbed(tmp_path, *TOPK)


@pytest.mark.parametrize("launcher", ["srun", "srun --mpi=pmi2"])
def test_jobs_of_one_rank_are_refused(cluster: Cluster, launcher: str) -> None:
    """An srun that does not know MPI, or not this one: one of the three processes says so, and nothing runs."""
    edits = {**NO_CONFIG, r"^resumable mpirun -n \S+ --map-by slot": f"resumable {launcher}"}
    job = cluster.submit("slurm/cpu.sbatch", *TOPK, edits=edits, options=["--ntasks=3"])
    (state,) = cluster.wait_until_left(job)
    log = (cluster.project / f"fedmpi-cpu-{job}.log").read_text()
    assert (state["JobState"], state["ExitCode"]) == ("FAILED", "2:0"), log
    assert log.count("MPI: 3 processes were started, but each is an MPI job of one rank") == 1, log
    assert "Traceback" not in log and not (cluster.project / "runs" / f"fedmpi-cpu-{job}").exists()
