"""What becomes of a save that fails (`output.on_save_error`), and whether saves take too long."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from fedmpi.errors import RunDirError, counted
from fedmpi.store.files import writing

Say = Callable[[str], None]

# Saving is slow where it takes this share of the last rounds, and more than so many seconds of each.
_SLOW_SHARE, _SLOW_S, _NUM_RECENT = 0.2, 1.0, 5


class Saving:
    """The saves of one start of a run.

    >>> saving = Saving("warn", Path("runs/digits"), say=print, warn=print)
    >>> saving.attempt(3, lambda: write_text(path, text), must_hold=False)  # False, and one line, on a full disk
    """

    def __init__(self, on_error: Literal["stop", "warn"], folder: Path, *, say: Say, warn: Say) -> None:
        self._on_error, self._folder, self._say, self._warn = on_error, folder, say, warn
        self._errors: list[dict[str, Any]] = []
        self._num_failed = 0
        self._recent_s: deque[tuple[float, float]] = deque(maxlen=_NUM_RECENT)
        self._is_known_slow = False

    def attempt(self, round_number: int, save: Callable[[], None], *, must_hold: bool) -> bool:
        """Whether `save` wrote all. Raises RunDirError if it did not and `on_error` is `stop`, or it `must_hold`."""
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
        """Round and error of each failed save since the last call, for the record."""
        errors, self._errors = self._errors, []
        return errors

    def took(self, saving_s: float, round_s: float) -> None:
        """Says once if the saves of the last rounds, `saving_s` of the `round_s` that each took, are slow."""
        self._recent_s.append((saving_s, round_s))
        mean_s, total_s = (sum(column) / _NUM_RECENT for column in zip(*self._recent_s, strict=True))
        is_slow = len(self._recent_s) == _NUM_RECENT and mean_s > max(_SLOW_S, _SLOW_SHARE * total_s)
        if is_slow and not self._is_known_slow:
            self._is_known_slow = True
            self._warn(
                f"saving takes {mean_s:.1f} s of the {total_s:.1f} s of a round (mean of the last "
                f"{_NUM_RECENT}): save less often (output.checkpoint_every), or put the run directory on a faster disk"
            )
