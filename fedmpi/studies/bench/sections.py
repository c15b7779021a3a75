"""What the sections of the GPU benchmark share: settings, a process's part of a run, and how numbers are shown."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fedmpi.config.load import load
from fedmpi.config.schema import Config
from fedmpi.mpi.serial import SerialComm
from fedmpi.rounds.state import Setup
from fedmpi.running import start
from fedmpi.store.run_dir import RunDir

DRY = "not measured (dry run)"


class SectionError(Exception):
    """A section has failed; its text says why, and `lines` are what was found all the same."""

    def __init__(self, why: str, lines: Sequence[str] = ()) -> None:
        self.lines = tuple(lines)
        super().__init__(why)


@dataclass(frozen=True)
class Measuring:
    """The settings of all sections, and whether this is a dry run, which measures nothing."""

    words: tuple[str, ...]
    is_dry: bool

    def shown(self, value: float | str, form: str = "{}") -> str:
        """A number or a result, unless nothing is measured."""
        return DRY if self.is_dry else form.format(value)

    def but(self, *words: str) -> Measuring:
        """With these settings on top."""
        return replace(self, words=(*self.words, *words))

    @property
    def config(self) -> Config:
        return load(None, self.words)

    @property
    def seconds(self) -> float:
        """How long one number is measured, at least."""
        return 0.0 if self.is_dry else 0.4

    @contextmanager
    def setup(self) -> Iterator[Setup]:
        """What a run of one process is given."""
        with tempfile.TemporaryDirectory() as folder:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as the command does, before CUDA starts
            yield start.prepare(self.config, SerialComm(), RunDir(Path(folder)))


Lines = Callable[[Measuring], list[str]]
"""A section's lines of Markdown. Raises `SectionError`."""
