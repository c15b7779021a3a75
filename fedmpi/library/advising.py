"""What a run started by a Python program advises next: calls of `fedmpi` instead of commands."""

from __future__ import annotations

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
        """As it is: a backslash at the end of a line is the shell's."""
        return text

    def _config(self, folder: str, lr: float | None) -> str:
        """The caller's, or the run's with another learning rate."""
        if lr is None:
            return "config"
        return f"fedmpi.load_config({f'{folder}/config.yaml'!r}, {{'train.lr': {lr:.3g}}})"
