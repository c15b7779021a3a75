"""fedmpi plot RUN... --out FILE.pdf [--x rounds|bytes|macs] [--y accuracy|loss] [--tier NAME]... [--tex FILE.tex]

Draws one figure for a paper, as .pdf, .svg, .png or .eps: a line for each setting, the mean of its runs, with a band
from the lowest to the highest seed; a panel for each --tier, which may be given several times (without it, for the
largest net of each setting). --tex writes the table of last values, too. RUN is a run directory, or a folder of them,
as `compare` and `reproduce` leave them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fedmpi.command.manners import Parser, file_to_write, run_command, show
from fedmpi.errors import ConfigError
from fedmpi.pages import facts
from fedmpi.report.terminal import warning
from fedmpi.store.files import write_text


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 2 for a mistake of the user."""
    parser = Parser("fedmpi plot", __doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--out", required=True, metavar="FILE.pdf", help="the figure; the ending says the format")
    parser.add_argument("--x", choices=("rounds", "bytes", "macs"), default="rounds", help="default rounds")
    parser.add_argument("--y", choices=("accuracy", "loss"), default="accuracy", help="default accuracy")
    tier = "a net's name, for a panel of it; repeat --tier for more panels (default: each setting's largest net)"
    parser.add_argument("--tier", action="append", default=[], metavar="NAME", help=tier)
    parser.add_argument("--tex", metavar="FILE.tex", help="the table of last values, in LaTeX")
    return run_command(lambda: _plot(**vars(parser.parse_args(argv))))


def _plot(runs: Sequence[str], out: str, x: str, y: str, tier: Sequence[str], tex: str | None) -> None:
    from fedmpi.pages import figure, plotted  # load matplotlib
    from fedmpi.pages.settings import grouped
    from fedmpi.pages.several import to_mind

    path, table = file_to_write("--out", out), tex and file_to_write("--tex", tex)
    if table == path:
        raise ConfigError("--tex", f"{path} is the figure's file, too; name another")
    if path.suffix.lower() not in figure.FORMATS:
        raise ConfigError("--out", f"'{out}' ends in none of {', '.join(figure.FORMATS)}, which choose the format")
    found = facts.read_all([Path(run) for run in runs])
    groups = grouped(found)
    minded = to_mind(found, groups)
    if not (tiers := plotted.chosen_tiers(groups, tier, y)):
        problem = "no round of these runs has been tested yet, so there is nothing to draw"
        raise ConfigError("command line", "; ".join([problem, *minded]))
    figure.save(plotted.drawn(groups, x, y, tiers), path)
    for line in minded:
        print(warning(line), file=sys.stderr, flush=True)
    show(f"{path}")
    if table:
        write_text(table, plotted.tex(groups, y))
        show(f"{table}")
