"""The command that continues a run, and what each start notes of it in the manifest, so that others can print it, too.

A manifest may come from elsewhere, or may have been edited. What a command takes from it is checked: a number, a folder
and words that name code, nothing else.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedmpi.errors import MAX_LINE
from fedmpi.store.manifest import RESUME

_MOST_RANKS = 10**7
_WORD = re.compile(r"(?:method|model|data|partition)\.name=[\w.:]+|output\.observers=\[[\w.:,]+\]")


@dataclass(frozen=True)
class Again:
    """What a command that continues a run has beside the run's directory."""

    ranks: int = 1
    folder: str = ""
    """The folder from which alone the user's modules or data are found; empty where they are found from everywhere."""
    words: tuple[str, ...] = ()
    """Names of the user's own code, because a run directory alone makes fedmpi import nothing."""

    def command(self, *words: str) -> str:
        """The command with these words, wherever it is typed."""
        enter = f"cd {shlex.quote(self.folder)} && " if self.folder else ""
        launcher = f"mpirun -n {self.ranks} " if self.ranks > 1 else ""
        return f"{enter}{launcher}python -m fedmpi.main {shlex.join([*words, *self.words])}"

    def noted(self, run_dir: object) -> dict[str, Any]:
        """The entry of a start; `run_dir` is where the run is now."""
        return {RESUME: {**asdict(self), "words": [*self.words], "run_dir": str(run_dir)}}

    @classmethod
    def of(cls, start: Mapping[str, Any]) -> Again:
        """What a start has noted. Of a start of an older version the number of ranks is known alone."""
        match start.get(RESUME), start.get("ranks"):
            case {"ranks": int(ranks), "folder": str(folder), "words": [*words]}, _ if (
                0 < ranks < _MOST_RANKS and _is_folder(folder) and all(map(_names_code, words))
            ):
                return cls(ranks, folder, tuple(words))
            case _, [*ranks]:
                return cls(len(ranks))
        return cls()


def true_now(advice: str, start: Mapping[str, Any], run_dir: str) -> str:
    """The advice of a rank about a run that is in `run_dir` now, and may have been elsewhere when it gave the advice. A
    command enters no folder that is not here.
    """
    advice = entering_none_gone(advice, Again.of(start).folder)
    match start.get(RESUME):
        case {"run_dir": str(before)} if before and _is_folder(before) and before != run_dir:
            for inside in ("", "/config.yaml"):
                for quoted in (shlex.quote, repr):
                    old, new = (quoted(f"{folder}{inside}") for folder in (before, run_dir))
                    apart = rf"(?<![^\s(=]){re.escape(old)}(?![^\s,)])"
                    advice = re.sub(apart, new.replace("\\", r"\\"), advice)
    return advice


def entering_none_gone(advice: str, folder: str) -> str:
    """The advice, whose command enters `folder` no more where that is not here."""
    if not folder or os.path.isdir(folder):
        return advice
    instead = f", from a folder that has its code and data ({folder} is not here): "
    return advice.replace(f": cd {shlex.quote(folder)} && ", instead, 1)


def _is_folder(text: str) -> bool:
    """A folder that can be printed, or none."""
    return not text or (os.path.isabs(text) and text.isprintable() and len(text) <= MAX_LINE)


def _names_code(word: object) -> bool:
    return isinstance(word, str) and len(word) <= MAX_LINE and bool(_WORD.fullmatch(word))
