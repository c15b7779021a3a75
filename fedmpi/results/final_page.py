"""The page of a finished run, `report/report.html`: an observer that writes it when the run has ended."""

from __future__ import annotations

from fedmpi.data.show import class_counts
from fedmpi.report.observer import Ended
from fedmpi.results import page
from fedmpi.results.run import Run
from fedmpi.rounds.state import Setup
from fedmpi.store import checkpoint
from fedmpi.store.files import write_text
from fedmpi.store.run_dir import RunDir

# Decomposing all layers then takes well under a second; `fedmpi show RUN --html` has no such limit.
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
        server = dict(checkpoint.load(folder.checkpoint_path(ended.done)).server)
        extras = page.Extras(
            classes=class_counts(setup.partition, setup.labels, setup.data.info.num_classes),
            **page.spectra_of(setup.method.layers, setup.method.tiers, server, MOST_PRODUCTS),
        )
        write_text(folder.page_path, page.page_of(Run(folder.path), extras))
