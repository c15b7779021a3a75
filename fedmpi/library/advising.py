"""What a run started by a Python program advises next: calls of `fedmpi` instead of commands."""

from __future__ import annotations

from fedmpi.report.terminal import DEFAULT_COLUMNS, wrapped
from fedmpi.running.advice import Advice


class InPython(Advice):
    """The advice as calls; `config` in them is the one that the program has given."""

    _resume_alone = "resume=True alone"

    def resume_command(self, lr: float | None = None, *, moved_to: str = "") -> str:
        folder = moved_to or str(self._folder())
        return f"fedmpi.run({self._config(folder, lr)}, run_dir={folder!r}, resume=True)"

    def branch_command(self, lr: float) -> str:
        folder = str(self._folder())
        return f"fedmpi.run({self._config(folder, lr)}, resume_from={folder!r})"

    def in_lines(self, text: str) -> str:
        """A call that would make the line longer than 80 columns stands below it: a backslash is the shell's."""
        if len(text) <= DEFAULT_COLUMNS:
            return text
        said, _, call = text.partition(": ")
        return "\n".join([*wrapped(f"{said}:"), f"  {call}"])

    def _config(self, folder: str, lr: float | None) -> str:
        """The caller's, or the run's with another learning rate."""
        if lr is None:
            return "config"
        return f"fedmpi.load_config({f'{folder}/config.yaml'!r}, {{'train.lr': {lr:.3g}}})"
