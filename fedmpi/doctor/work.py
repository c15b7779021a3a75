"""What a run will find: the time that is left, and the data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedmpi import registry
from fedmpi.data.command import data_options, state_of
from fedmpi.doctor.finding import Finding, ok, problem, warning
from fedmpi.errors import UserError
from fedmpi.running.stopping import seconds_left

_SHORT_S = 600.0


def time_limit(environment: Mapping[str, str], now_s: float) -> Finding:
    """The end of the batch job, where Slurm says it."""
    left_s, job = seconds_left(0.0, environment, now_s), environment.get("SLURM_JOB_ID", "")
    if left_s is None:
        unknown = f"job {job}; its end is not known here (slurm/life_cycle.sh asks squeue)"
        return ok("time limit", unknown if job else "none: in no batch job")
    found = f"{left_s / 60:.0f} min of job {job} are left"
    if left_s <= 0:
        advice = "unset SLURM_JOB_END_TIME: it is that of another job, and a run would stop after one round"
        return problem("time limit", f"SLURM_JOB_END_TIME was {-left_s / 60:.0f} min ago", advice)
    if left_s < _SHORT_S:
        return warning("time limit", found, "ask for more time, or submit slurm/job.sbatch, whose run continues")
    return ok("time limit", found)


def data(data_dir: str | None) -> Finding:
    """Which data sets can be used."""
    states: dict[str, list[str]] = {}
    try:
        for name, section in registry.built_in("data"):
            if not any(field.is_required() for field in section.model_fields.values()):
                state = state_of(data_options(name, (), data_dir))
                states.setdefault("ready" if state == "needs no files" else state.partition(" (")[0], []).append(name)
    except (UserError, OSError) as error:
        return problem("data", str(error), "name a folder that can be read with --data-dir")
    ready_first = sorted(states, key=lambda state: state != "ready")
    found = "; ".join(f"{state}: {', '.join(states[state])}" for state in ready_first)
    if data_dir is not None and not Path(data_dir).expanduser().is_dir():
        advice = "check the name, or `fedmpi data fetch NAME --data-dir D` makes it"
        return warning("data", f"{data_dir} is not a folder; {found}", advice)
    return ok("data", found)
