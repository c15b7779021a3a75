"""Pages of runs: their numbers are the records'. Settings are told apart."""

import html
import re
from pathlib import Path

import pytest
from written_runs import a_run, with_records

from fedmpi.results.frame import cautions, grouped, panels
from fedmpi.results.page import page_of
from fedmpi.results.run import Run
from fedmpi.store import manifest
from fedmpi.store.run_dir import RunDir


def cells(text: str) -> list[str]:
    """The texts of all cells."""
    return [html.unescape(cell) for cell in re.findall(r"<(?:td|dd)[^>]*>(.*?)</(?:td|dd)>", text, re.DOTALL)]


def test_a_page_has_the_numbers_and_fetches_nothing(tmp_path: Path) -> None:
    lost = {"rank": 2, "host": "<node>", "round": 1}
    run = a_run(tmp_path / "a<b>", [{"1": 0.25}, {"1": 0.75}], losses=[lost])
    costs = {"params": 1500, "macs": 2500, "down_bytes": 6000, "up_bytes": 7000}
    manifest.add_start(RunDir(run), ranks=[{}], sizes=[{"name": "1", **costs}], defaults="a=1")
    text = page_of(Run(run))
    found = cells(text)
    assert "a=1" in text and {"75.00 %", "300 B"} <= set(found) and "rank 2 on &lt;node&gt; was lost" in text
    row = found.index("tier 1")  # on a phone only the first columns are seen
    assert found[row : row + 8] == ["tier 1", "75.00 %", "75.00 %", "2", "1.50 k", "2.50 k", "6.00 kB", "7.00 kB"]
    assert "a&lt;b&gt;" in text and "a<b>" not in text
    assert not re.search(r"url\((?!#)|@import|<(script|img|iframe)|\b(src|href)=\"(?!data:,|#)", text)
    assert text == page_of(Run(run))


@pytest.mark.slow
def test_a_page_shows_what_tiers_lack(tmp_path: Path) -> None:
    """A curve for each tier that lacks anything; zeros have no place on it."""
    run = a_run(tmp_path / "run", [{"1": 0.5}] * 2)
    assert "lack" not in page_of(Run(run))
    spectra = [{"beyond": {"0.5": 0.0, "0.25": share}, "learned_beyond": {}} for share in (0.5, 0.25)]
    text = page_of(Run(with_records(run, *({"method": {"spectrum": one}} for one in spectra))))
    assert "Energy beyond a tier&#39;s rank" in text and ">tier 0.25<" in text
    assert "The same of what has changed" not in text and "Predicted factor" not in text
    text = page_of(Run(with_records(run, {"method": {"band_factor": {"0.5": 0.75, "0.25": 1.0}}})))
    assert "What smaller tiers lack" in text and "Predicted factor" in text


def test_a_page_shows_classes(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", [{"clients": 0.5}])
    text = page_of(Run(run), lambda axes: axes.set_xlabel("the classes"), "a note")
    assert ">the classes<" in text and "<figcaption>Examples of each class</figcaption>" in text and "a note" in text


@pytest.mark.parametrize("accuracies", [[], [{}], [{"1": 0.5}]])
def test_a_page_of_a_young_run(tmp_path: Path, accuracies) -> None:
    assert "of 9 rounds" in page_of(Run(a_run(tmp_path / "run", accuracies, rounds=9)))


def test_damage_is_a_note(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", [{"1": 0.5}] * 3)
    kept = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    (run / "rounds.jsonl").write_text(kept[0] + kept[2])
    (run / "partition.h5").write_bytes(b"no file of ours")
    text = page_of(Run(run))
    assert text.count('<p class="note">') == 2 and "rounds.jsonl lacks 1 round" in text


def test_starts_and_ranks(tmp_path: Path) -> None:
    """A start that found nothing left to do counts neither as one of the ranks nor as what made the run."""
    run = a_run(tmp_path / "run", [{"1": 0.5}] * 3)
    ranks = [{"place": "a: cpu"}, {"place": "b: cuda:0"}]
    stopped = {"round": 3, "why": "time limit"}
    manifest.add_start(RunDir(run), started="10:00", ranks=ranks, host="first", stopped=stopped)
    manifest.add_start(RunDir(run), started="11:00", ranks=ranks[:1], host="last", resumed_round=3)
    text = page_of(Run(run))
    assert " on 2 ranks." in text and "first" in text and "last&#34;" not in text
    found = cells(text)
    assert found[-8:] == ["10:00", "0", "2", "after round 3: time limit", "11:00", "3", "1", "none on record"]
    with_records(run, {}, {}, {"busy_s": {"0": 1.0}})
    assert " on 2, then 1 ranks." in page_of(Run(run))


def test_of_runs_of_one_seed_the_longest_is_shown(tmp_path: Path) -> None:
    short, long = (Run(a_run(tmp_path / str(n), [{"1": 0.1 * n}] * n, rounds=2)) for n in (1, 2))
    (group,) = grouped([short, long])
    assert group.runs == [long] and next(cautions([group])).startswith("1 is left out: 2 has the same settings")


def test_the_clients_own_nets_come_first(tmp_path: Path) -> None:
    run = Run(a_run(tmp_path / "run", [{"1": 0.25, "clients": 0.75}]))
    (panel,) = panels(grouped([run]), [], "rounds", "accuracy")
    assert run.tested == ["clients", "1"] and panel.label == "test accuracy, clients"


def test_what_moves_nothing_has_no_chart_by_bytes(tmp_path: Path) -> None:
    nothing = {"protocol_down_bytes": 0, "protocol_up_bytes": 0}
    text = page_of(Run(with_records(a_run(tmp_path / "run", [{"1": 0.5}] * 2), nothing)))
    assert "MACs" in text and "Bytes of all" not in text
