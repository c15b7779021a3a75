"""The config that a command is given, and where its run begins."""

from collections.abc import Sequence
from pathlib import Path

from fedmpi.config.schema import Config
from fedmpi.errors import ConfigError, counted
from fedmpi.results.grid_file import load_address
from fedmpi.running.folder import Origin, config_of
from fedmpi.store.run_dir import RunDir


def check_ranks(config: Config, size: int) -> None:
    """Raises `ConfigError` for a job of fewer ranks than the config wants."""
    if (least := config.mpi.min_ranks) > size:
        here = counted(size, "rank")
        raise ConfigError("mpi.min_ranks", f"is {least}, but the job has {here}; start more, or allow {size}")


def config_and_origin(
    path: str | None, overrides: Sequence[str], run_dir: str | None, resume: bool, init_from: str | None
) -> tuple[Config, Origin | None]:
    """Returns the validated config, and the run that a new one takes its first state from. Raises `ConfigError`.

    A resumed run takes the config it was begun with unless another is given (`path`), a new one with `init_from` that
    of the other run. Where there is no run, one begins if there is a config or an override, as in batch files.
    """
    origin = origin_of(run_dir, resume, init_from)
    if path is None and (origin is not None or _has_begun(run_dir, resume)):
        folder = origin.run_dir if origin is not None else RunDir(Path(run_dir or ""))
        return config_of(folder, overrides, trains=True), origin
    if path is None and resume and not overrides:
        raise ConfigError(str(run_dir), "holds no run to continue (no config.yaml); name the config to begin one there")
    return load_address(path, overrides), origin


def origin_of(run_dir: str | None, resume: bool, init_from: str | None) -> Origin | None:
    """Returns the run that a new one takes its first state from; None for one that has begun. Raises ConfigError."""
    if init_from is None or _has_begun(run_dir, resume):
        return None
    return Origin.named(init_from, run_dir)


def _has_begun(run_dir: str | None, resume: bool) -> bool:
    return resume and RunDir(Path(run_dir or "")).has_config()
