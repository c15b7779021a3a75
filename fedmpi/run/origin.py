"""Where a branch begins: the checkpoint of another run that `--resume-from` names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from fedmpi.errors import ConfigError
from fedmpi.store.run_dir import RunDir

_OPTION = "--resume-from"
_AT_ROUND = re.compile(r"(.+)@(\d{1,18})", re.DOTALL)


@dataclass(frozen=True)
class Origin:
    """A run, and which of its checkpoints."""

    run_dir: RunDir
    round: int | None = None
    """None stands for the newest whole checkpoint."""

    @classmethod
    def named(cls, text: str) -> Origin:
        """`RUN`, `RUN@12`, or the checkpoint itself, `RUN/checkpoints/round-000012.h5`. Raises ConfigError."""
        run, number = _parted(text)
        if Path(text).suffix == ".h5":
            number = next((found for found, path in RunDir(run).checkpoints() if path.name == Path(text).name), None)
            if number is None or Path(text).parent.name != RunDir(run).checkpoints_dir.name:
                raise ConfigError(_OPTION, f"{text} is no checkpoint of a run; name one in the run's own checkpoints/")
        origin = cls(RunDir(run.resolve()), number)
        if not origin.run_dir.config_path.is_file():
            allowed = "name a run's folder, FOLDER@ROUND, or a file in its checkpoints/"
            raise ConfigError(_OPTION, f"{run} holds no run (no config.yaml); {allowed}")
        return origin

    def checkpoints(self) -> list[tuple[int, Path]]:
        """(round, path) of those that the branch may begin from, newest first."""
        return [found for found in self.run_dir.checkpoints() if self.round in (None, found[0])]

    def label(self) -> str:
        """The beginning of the name of the branch's folder, where the user gives none."""
        return f"{self.run_dir.path.name}-branch"


def refuse_inside(text: str, new_run: str) -> None:
    """Raises ConfigError if the branch would live in the run that `text` names, which is only read."""
    old, new = _parted(text)[0].resolve(), Path(new_run).resolve()
    if new.is_relative_to(old):
        where = "is" if new == old else "is inside"
        advice = "take another --run-dir, or --resume alone to go on with the run itself"
        raise ConfigError(_OPTION, f"--run-dir {new_run} {where} the run that the branch begins from; {advice}")


def _parted(text: str) -> tuple[Path, int | None]:
    """The run's folder, and the round where one is named."""
    path = Path(text)
    if path.suffix == ".h5":
        return path.parent.parent, None
    match = None if path.is_dir() else _AT_ROUND.fullmatch(text)
    return (Path(match[1]), int(match[2])) if match else (path, None)
