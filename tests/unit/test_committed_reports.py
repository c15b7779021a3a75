"""The reports of the repository's studies are those that their records give today."""

from pathlib import Path

import pytest
from fast import fast

from fedmpi.results import grid_report
from fedmpi.results.grid import GridFolder
from fedmpi.results.grid_file import read

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "configs" / "studies").glob("*.yaml"))
STUDIES = [path for path in FILES if (ROOT / "jobs" / "studies" / path.stem).is_dir()]
"""Those that have run."""


@pytest.mark.parametrize("path", fast(STUDIES[0], of=STUDIES), ids=lambda path: path.stem)
def test_a_committed_report_is_not_stale(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are there; that the same runs draw the same bytes is another test's."""
    monkeypatch.syspath_prepend(ROOT)  # the config of one study names code of the repository
    results = ROOT / "jobs" / "studies" / path.stem
    folder = GridFolder(read(path), tmp_path, results)
    folder.refuse_changed()
    found = folder.collect()
    assert {*grid_report.figures_of(found)} == {file.name for file in results.glob("*.svg")}
    texts = grid_report.texts(found)
    assert texts.keys() == {"report.md", "table.tex", "values.csv"}
    for name, text in texts.items():
        assert text == (results / name).read_text(), f"{name} is stale: fedmpi grid {path} --report"
