"""fedmpi report RUN... [--out FILE.html]

Writes one HTML file that works offline: of one run (by default RUN/report/report.html), or of several runs beside each
other (report.html). Runs that differ by nothing but their seed are one line, their mean, with a band from the lowest to
the highest seed. RUN is a run directory, finished or not, or a folder of them, as `compare` and `reproduce` leave them
(then FOLDER/report.html).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedmpi.command.manners import Parser, file_to_write, run_command, show
from fedmpi.errors import ConfigError, RunDirError, UserError
from fedmpi.pages import facts, inside
from fedmpi.pages.facts import Facts
from fedmpi.pages.page import page
from fedmpi.store.files import write_text
from fedmpi.store.run_dir import RunDir

_ENDINGS = (".html", ".htm")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 2 for a mistake of the user."""
    parser = Parser("fedmpi report", __doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--out", metavar="FILE.html")
    return run_command(lambda: _report(**vars(parser.parse_args(argv))))


def _report(runs: Sequence[str], out: str | None) -> None:
    found = facts.read_all([Path(run) for run in runs])
    if out and Path(out).suffix.lower() not in _ENDINGS:
        raise ConfigError("--out", f"'{out}' ends in none of {', '.join(_ENDINGS)}, and what is written is HTML")
    path = file_to_write("--out", out) if out else Path(runs[0] if len(runs) == 1 else "", "report.html")
    if len(found) == 1:
        found = [with_classes_and_spectra(found[0])]
        if not out:
            path = RunDir(found[0].folder).page_path
            path.parent.mkdir(exist_ok=True)
    write_text(path, page(found))
    show(f"{path}")


def with_classes_and_spectra(found: Facts) -> Facts:
    """The facts with what needs the method's class, its checkpoint and the data; a note says what is not to be had."""
    from fedmpi import methods
    from fedmpi.data import reading
    from fedmpi.data.partition import saved
    from fedmpi.data.show import class_counts
    from fedmpi.running.folder import config_of
    from fedmpi.running.start import method_context
    from fedmpi.store import checkpoint

    run_dir = RunDir(found.folder)
    try:
        config = config_of(run_dir)
        info = config.data.used()
        if newest := run_dir.checkpoints()[:1]:
            method = methods.create(method_context(config, info))
            server = dict(checkpoint.load(newest[0][1]).server)
            if problem := checkpoint.unfit(server, method.state_specs()):
                raise RunDirError(str(newest[0][1]), problem)
            found = replace(found, spectra=inside.spectra(method.layers, method.tiers, server))
        labels, partition = reading.load(config.data).train_y, saved(run_dir.partition_path)[0]
        return replace(found, classes=class_counts(partition, labels, info.num_classes))
    except UserError as error:
        return replace(found, notes=(*found.notes, f"a part of this page is left out: {error.text()}"))
