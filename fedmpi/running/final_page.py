"""The page of a finished run, `report/report.html`: an observer that writes it when the run has ended."""

from __future__ import annotations

from dataclasses import replace

from fedmpi.data.show import class_counts
from fedmpi.pages import facts, inside, page
from fedmpi.report.observer import Ended
from fedmpi.rounds.state import Setup
from fedmpi.store import checkpoint
from fedmpi.store.files import write_text
from fedmpi.store.run_dir import RunDir

# Decomposing all layers then takes well under a second; `fedmpi report RUN` has no such limit.
MOST_PRODUCTS = 2e9


class FinalPage:
    """Holds what the page needs beside the files of the run: who has which labels, and the method's layers."""

    def __init__(self, setup: Setup, folder: RunDir) -> None:
        self._setup, self._folder = setup, folder

    def run_ended(self, ended: Ended) -> None:
        """Writes the page of a run that has come to its last round. Raises RunDirError."""
        if ended.stopped:
            return
        setup, folder = self._setup, self._folder
        num_classes, method = setup.data.info.num_classes, setup.method
        server = dict(checkpoint.load(folder.checkpoint_path(ended.done)).server)
        found = replace(
            facts.read(folder.path),
            classes=class_counts(setup.partition, setup.labels, num_classes),
            spectra=inside.spectra(method.layers, method.tiers, server, MOST_PRODUCTS),
        )
        write_text(folder.page_path, page.page([found]))
