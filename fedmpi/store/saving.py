"""Handles a save that fails (`output.on_save_error`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from fedmpi.errors import RunDirError, counted
from fedmpi.store.files import writing

Say = Callable[[str], None]


class Saving:
    """The saves of one start of a run.

    >>> saving = Saving("warn", Path("runs/digits"), say=print, warn=print)
    >>> saving.attempt(3, lambda: write_text(path, text), must_hold=False)  # False, and one line, on a full disk
    """

    def __init__(self, on_error: Literal["stop", "warn"], folder: Path, *, say: Say, warn: Say) -> None:
        self._on_error = on_error
        self._folder = folder
        self._say = say
        self._warn = warn
        self._errors: list[dict[str, Any]] = []
        self._num_failed = 0

    def attempt(self, round_number: int, save: Callable[[], None], *, must_hold: bool) -> bool:
        """Calls `save` and returns whether it wrote all.

        Raises RunDirError if it did not, and `on_error` is `stop` or it `must_hold`.
        """
        try:
            with writing(self._folder):
                save()
        except RunDirError as error:
            if must_hold or self._on_error == "stop":
                raise
            self._num_failed += 1
            self._errors.append({"round": round_number, "error": error.text()})
            self._warn(f"round {round_number} is not saved, the next round tries again: {error.text()}")
            return False
        if self._num_failed:
            self._say(f"all is saved again, after {counted(self._num_failed, 'save')} that failed")
            self._num_failed = 0
        return True

    def take_errors(self) -> list[dict[str, Any]]:
        """Returns round and error of each failed save since the last call, for the record."""
        errors = self._errors
        self._errors = []
        return errors
