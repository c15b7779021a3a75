"""Pages and figures of runs: their numbers are the records'; differences and intervals by hand."""

import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from written_runs import a_run

from fedmpi.command import plot, report
from fedmpi.data.partition import Partition
from fedmpi.data.show import class_counts
from fedmpi.errors import ConfigError, RunDirError
from fedmpi.pages import facts, figure, plotted
from fedmpi.pages.page import page
from fedmpi.pages.prose import name_of
from fedmpi.pages.settings import Group, differences, grouped, mean_and_half_width
from fedmpi.store import manifest
from fedmpi.store.run_dir import RunDir


class Tables(HTMLParser):
    """The texts of all cells, and everything that a page would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.fetched: list[str] = []
        self._is_cell = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self._is_cell = tag in ("td", "dd")
        if self._is_cell:
            self.cells.append("")
        if tag in ("script", "img", "link", "iframe", "source"):
            self.fetched += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag):
        self._is_cell = self._is_cell and tag not in ("td", "dd")

    def handle_data(self, data):
        if self._is_cell:
            self.cells[-1] += data


def test_facts_are_the_files_own(tmp_path):
    found = facts.read(a_run(tmp_path / "run", [{"1": 0.25, "0.5": 0.5}, {"1": 0.75}], rounds=5))
    assert (found.rounds, found.done, found.is_finished, found.tested) == (5, 2, False, ["1", "0.5"])
    assert found.course("1") == ([1, 2], [0.25, 0.75]) and found.course("0.5", "loss") == ([1], [0.5])
    numbers, sums = found.cumulated("protocol_down_bytes", "protocol_up_bytes")
    assert (numbers, sums.tolist()) == ([1, 2], [150.0, 300.0])
    assert found.time_s == {"local_training": 4.0, "idle": 2.0, "other": 1.0}
    assert found.sizes is not None
    assert found.sizes.tolist() == [1, 2, 3, 0]
    assert [(row["name"], row["accuracy_best"], row["best_round"]) for row in found.tiers] == [
        ("1", 0.75, 2),
        ("0.5", 0.5, 1),
    ]


def test_a_page_has_the_numbers_and_fetches_nothing(tmp_path):
    lost = {"rank": 2, "host": "<node>", "round": 1}
    read = Tables(text := page([facts.read(a_run(tmp_path / "a<b>", [{"1": 0.25}, {"1": 0.75}], losses=[lost]))]))
    assert {"75.00 %", "tier 1", "300 B", "rank 2 was lost", "on <node>"} <= set(read.cells)
    assert "a&lt;b&gt;" in text and "a<b>" not in text
    assert read.fetched == ["data:,"] and not re.search(r"url\((?!#)|@import|<script", text)
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', text)


def test_a_page_shows_what_tiers_lack(tmp_path):
    """A curve for each tier that lacks anything; zeros have no place on it. The layers' table is of the last round."""
    found = facts.read(a_run(tmp_path / "run", [{"1": 0.5}] * 2))
    assert "lack" not in page([found])
    spectra = [{"beyond": {"0.5": 0.0, "0.25": share}, "learned_beyond": {}} for share in (0.5, 0.25)]
    records = [{**one, "method": {"spectrum": note}} for one, note in zip(found.records, spectra, strict=True)]
    text = page([replace(found, records=records)])
    assert "What smaller tiers lack" in text and "Energy beyond a tier" in text and "has changed" in text
    assert "The same of what has changed" not in text and "Predicted factor" not in text
    layers = [{"conv": {"effective_rank": rank, "beyond": {"0.5": 0.0, "0.25": rank / 32}}} for rank in (16.25, 4.125)]
    notes = [
        {"spectrum": {**spectrum, "layers": layer}, "band_factor": {"0.5": 0.75, "0.25": 1.0}}
        for spectrum, layer in zip(spectra, layers, strict=True)
    ]
    records = [{**one, "method": note} for one, note in zip(found.records, notes, strict=True)]
    text = page([replace(found, records=records)])
    cells = Tables(text).cells
    assert cells[cells.index("conv") :][:5] == ["conv", "16.25", "4.125", "0", "0.1289"]
    assert "Predicted factor" in text


@pytest.mark.parametrize("config", ["x: [", "rounds: x", "- 1"])
def test_a_damaged_config_is_one_error_and_harms_no_other_run(tmp_path, config):
    for name in ("good", "damaged"):
        a_run(tmp_path / name, [{"1": 0.5}])
    path = tmp_path / "damaged" / "config.yaml"
    path.write_text(config)
    with pytest.raises(RunDirError) as caught:
        facts.read(path.parent)
    assert str(path) in caught.value.text() and "\n" not in caught.value.text()
    (found,) = facts.read_all([tmp_path])
    assert found.folder.name == "good" and any(str(path) in line for line in found.beside)


@pytest.mark.parametrize("accuracies", [[], [{}], [{"1": 0.5}]])
def test_a_page_of_a_young_run(tmp_path, accuracies):
    assert "of 9 rounds" in page([facts.read(a_run(tmp_path / "run", accuracies, rounds=9))])


def test_damage_is_a_note(tmp_path):
    run = a_run(tmp_path / "run", [{"1": 0.5}] * 3)
    kept = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    (run / "rounds.jsonl").write_text(kept[0] + kept[2])
    (run / "partition.h5").write_bytes(b"no file of ours")
    found = facts.read(run)
    assert found.sizes is None and len(found.notes) == 2
    assert page([found]).count('<p class="note">') == 2
    with pytest.raises(RunDirError):
        facts.read(tmp_path)


def test_how_each_start_ended(tmp_path):
    """A kill leaves no word; the last start may still be running."""
    found = facts.read(a_run(tmp_path / "run", [{"1": 0.5}], rounds=9))
    ended = {"started": "2026-01-01T10:00:00+0000", "ended": {"round": 4}, "ranks": [{}]}
    stopped = {"resumed_round": 6, "stopped": {"round": 7, "why": "time limit"}, "ranks": [{}, {}]}
    starts = [ended, {"resumed_round": 4}, stopped, {"resumed_round": 7}]
    cells = Tables(page([replace(found, starts=starts)])).cells
    assert {"2026-01-01 10:00:00+0000", "ended after round 4", "ended after round 7"} <= set(cells)
    assert [cells.count(one) for one in ("was interrupted", "no end yet", "2 ranks; stopped: time limit")] == [1, 1, 1]


def test_the_ranks_are_those_that_did_the_rounds(tmp_path):
    """Not those of a start that found nothing left to do, nor what that one was made with."""
    found = facts.read(a_run(tmp_path / "run", [{"1": 0.5}] * 3))
    ranks = [{"place": "a: cpu"}, {"place": "b: cuda:0"}]
    first = {"ranks": ranks, "host": "first", "ended": {"round": 3}}
    last = {"ranks": ranks[:1], "host": "last", "resumed_round": 3}
    text = page([replace(found, starts=[first, last])])
    assert " on 2 ranks (cpu, cuda:0)." in text
    assert {"first", "the beginning", "1 rank"} <= set(cells := Tables(text).cells)
    assert not {"last", "no end yet", "was interrupted"} & set(cells)
    alone = {**found.records[2], "busy_s": {"0": 1.0}}
    text = page([replace(found, records=[*found.records[:2], alone], starts=[first, {**last, "resumed_round": 2}])])
    assert re.search(r" 2 ranks \(rounds 1-2\), 1 rank \(round 3\); .*: cpu, cuda:0, in 2 starts\.", text)


def test_classes_by_client():
    partition = Partition(np.array([3, 0, 1, 2]), np.array([0, 1, 4, 4]))
    labels = np.array([2, 0, 2, 1])
    assert class_counts(partition, labels, 3).tolist() == [[0, 1, 0], [1, 0, 2], [0, 0, 0]]


def several(tmp_path) -> list[Group]:
    ours, theirs = (0.5, 0.6, 0.7), (0.4, 0.6, 0.5)
    runs = [a_run(tmp_path / f"ours{s}", [{"1": a}], seed=s) for s, a in enumerate(ours)]
    runs += [a_run(tmp_path / f"theirs{s}", [{"1": a}], seed=s, method="heterofl") for s, a in enumerate(theirs)]
    return grouped(map(facts.read, runs))


def test_differences_are_paired_by_seed(tmp_path):
    """Differences .1, 0, .2: mean .1, standard deviation .1, t(.975, 2) = 4.302653."""
    groups = several(tmp_path)
    assert [(group.name, group.seeds) for group in groups] == [("fedhm", [0, 1, 2]), ("heterofl", [0, 1, 2])]
    (found,) = differences(groups)
    assert (found.first, found.second, found.tier, found.num_seeds) == ("fedhm", "heterofl", "1", 3)
    assert found.mean == pytest.approx(0.1)
    assert found.half_width == pytest.approx(4.302653 * 0.1 / math.sqrt(3), rel=1e-6)
    assert mean_and_half_width([1.0, 3.0]) == (2.0, None)


def test_a_band_is_the_range_over_seeds(tmp_path):
    line = several(tmp_path)[0].line("1", "bytes", "accuracy", "ours")
    assert (line.x, line.low, line.high) == ([150.0], [0.5], [0.7])
    assert line.y == pytest.approx([0.6])


def test_settings_of_one_method_are_told_apart_by_what_differs(tmp_path):
    runs = [a_run(tmp_path / f"{lr}", [{"1": 0.5}], lr=lr) for lr in (0.1, 0.01)]
    assert [group.name for group in grouped(map(facts.read, runs))] == ["train.lr 0.1", "train.lr 0.01"]


def test_a_page_of_several(tmp_path):
    cells = Tables(page([run for group in several(tmp_path) for run in group.runs])).cells
    assert {"60.00 ± 10.00 %", "fedhm minus heterofl", "+10.00", "-14.84 to +34.84"} <= set(cells)


def test_runs_of_unequal_length_say_their_rounds(tmp_path):
    """Both seeds of the first have two rounds, those of the second one and two; what was not tested is not counted."""
    runs = [a_run(tmp_path / f"ours{seed}", [{"1": 0.5}] * 2, seed=seed) for seed in (0, 1)]
    runs += [a_run(tmp_path / f"theirs{n}", [{"1": 0.25}] * n, seed=n - 1, method="heterofl", rounds=2) for n in (1, 2)]
    runs.append(a_run(tmp_path / "young", [{}], method="fedavg", rounds=2))
    text = page([facts.read(run) for run in runs])
    cells = Tables(text).cells
    assert cells[:6] == ["fedhm", "tier 1", "2", "2", "50.00 ± 0.00 %", "50.00 %"] and cells[10] == "1 to 2"
    assert cells[14:18] == ["fedhm minus heterofl", "tier 1", "2", "2 and 1 to 2"]
    assert "4 runs of 2" in text and "<title>fedhm and heterofl" in text
    equal = page([facts.read(run) for run in (runs[1], runs[3])])
    assert ["tested last in" in one for one in (text, equal)] == [True, False]


def test_sizes_are_known_before_the_end(tmp_path):
    """By the last start that says them; damaged ones are left out, and what was tested is there all the same."""
    run = RunDir(a_run(tmp_path / "run", [{"1": 0.5, "server": 0.25}], rounds=3))
    costs = {"params": 1500, "macs": 2500, "down_bytes": 6000, "up_bytes": 7000}
    rows = [{"name": "1", **costs}, {"name": "0.5", **costs, "params": "many"}, {"params": 3}, 4]
    for more in ({manifest.SIZES: rows}, {manifest.SIZES: "?"}, {}):
        manifest.add_start(run, {"ranks": [{}], **more})
    found = facts.read(run.path)
    assert [(row["name"], row.get("params"), row["accuracy_last"]) for row in found.tiers] == [
        ("1", 1500, 0.5),
        ("0.5", None, None),
        ("server", None, 0.25),
    ]
    assert {"1.50 k", "2.50 k", "6.00 kB", "7.00 kB"} <= set(Tables(page([found])).cells)


def test_a_folder_stands_for_its_runs(tmp_path, capsys):
    """As `reproduce` leaves them; one that has not begun, and the shorter of two of one seed, are left out."""
    folder = tmp_path / "reproduced"
    (folder / "runs").mkdir(parents=True)
    (folder / "table.md").touch()
    for name, accuracies, seed in (("a-seed0", [0.5], 0), ("a-seed1", [0.75], 1), ("again", [0.5, 0.9], 1)):
        a_run(folder / "runs" / name, [{"1": share} for share in accuracies], seed=seed, rounds=3)
    a_run(folder / "runs" / "young", [], seed=2, rounds=3)
    found = facts.read_all([folder])
    assert [run.folder.name for run in found] == ["a-seed0", "a-seed1", "again"]
    (group,) = grouped(found)
    assert group.last("1") == {0: 0.5, 1: 0.9} and len(group.runs) == 2
    assert report.main([str(folder)]) == 0 and "70.00 ± 28.28 %" in (folder / "report.html").read_text()
    capsys.readouterr()
    for empty in (tmp_path / "nowhere", folder / "runs" / "young" / "report"):
        assert report.main([str(empty)]) == 2 and str(empty) in capsys.readouterr().err
    (tmp_path / "others").mkdir()
    for number in range(5):
        a_run(tmp_path / "others" / f"young{number}", [], rounds=3)
    with pytest.raises(RunDirError, match="others.*young0.*young3.*; and 1 more$"):
        facts.read_all([tmp_path / "others"])


def test_of_many_settings_each_is_compared_with_the_first(tmp_path):
    runs = [a_run(tmp_path / f"{lr}", [{"1": lr}], lr=lr) for lr in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)]
    groups = grouped(map(facts.read, runs))
    pairs = [(found.first, found.second) for found in differences(groups)]
    assert pairs == [("train.lr 0.1", f"train.lr {lr}") for lr in (0.2, 0.3, 0.4, 0.5, 0.6)]
    assert len([*differences(groups[:5])]) == 10
    assert "each is compared with the first" in page([run for group in groups for run in group.runs])


def test_the_clients_own_nets_come_first(tmp_path):
    found = facts.read(a_run(tmp_path / "run", [{"1": 0.25, "clients": 0.75}]))
    assert found.tested == ["clients", "1"] and plotted.chosen_tiers(grouped([found]), []) == ["clients"]


@pytest.mark.parametrize("ending", [".pdf", ".svg", ".png"])
def test_a_figure(tmp_path, ending):
    groups, path = several(tmp_path), tmp_path / f"drawn{ending}"
    figure.save(plotted.drawn(groups, "macs", "accuracy", ["1"]), path)
    first = path.read_bytes()
    figure.save(plotted.drawn(groups, "macs", "accuracy", ["1"]), path)
    assert path.read_bytes() == first


def test_a_table_in_latex(tmp_path):
    """What +- is, and which round the numbers are from."""
    table = plotted.tex(several(tmp_path), "accuracy").splitlines()
    assert table[2:5] == [
        r"setting & tier & seeds & round & test accuracy \\",
        r"\midrule",
        r"fedhm & 1 & 3 & 1 & $60.00 \pm 10.00$\,\% \\",
    ]
    assert r"$\pm$ sample standard deviation" in table[-2]
    alone = plotted.tex(grouped([facts.read(a_run(tmp_path / "run", [{"1": 0.5}, {"1": 0.6}]))]), "loss")
    assert r"fedhm & 1 & 1 & 2 & $0.400$ \\" in alone and r"\pm" not in alone


def test_a_line_says_what_it_is_the_mean_of(tmp_path):
    groups = [*several(tmp_path), *grouped([facts.read(a_run(tmp_path / "one", [{"1": 0.5}], lr=0.01))])]
    (axes,) = plotted.drawn(groups, "rounds", "accuracy", ["1"]).axes
    labels = [str(line.get_label()).partition(", ") for line in axes.get_lines()]
    assert [(name, said) for name, _, said in labels] == [
        ("fedhm", "mean of 3 seeds"),
        ("heterofl", "mean of 3 seeds"),
        ("fedhm", ""),
    ]


SHARED, OWN, BOTH = [{"1": 0.25, "0.5": 0.5}] * 2, [{"clients": 0.5}] * 2, [{"1": 0.25, "clients": 0.5}] * 2


@pytest.mark.parametrize("x", ["rounds", "bytes", "macs"])
@pytest.mark.parametrize("accuracies", [SHARED, OWN, BOTH])
def test_no_panel_of_a_figure_is_empty(tmp_path, accuracies, x):
    """Nets that clients have for themselves have no loss: the next net is drawn, or one line says what can be."""
    groups = grouped([facts.read(a_run(tmp_path / "run", accuracies))])
    for y, tiers in (("accuracy", groups[0].tested[:1]), ("loss", groups[0].recorded("loss")[:1])):
        if tiers:
            assert plotted.chosen_tiers(groups, [], y) == tiers
            (axes,) = plotted.drawn(groups, x, y, tiers).axes
            assert [len(line.get_xdata()) for line in axes.get_lines()] == [2]
        else:
            with pytest.raises(ConfigError, match="--y: .* loss .*accuracy"):
                plotted.chosen_tiers(groups, [], y)
    if accuracies is BOTH:
        with pytest.raises(ConfigError, match="--tier: .*clients; allowed: 1$"):
            plotted.chosen_tiers(groups, ["clients"], "loss")


def test_what_moves_nothing_has_no_figure_by_bytes(tmp_path):
    found = facts.read(a_run(tmp_path / "run", OWN))
    none = {"protocol_down_bytes": 0, "protocol_up_bytes": 0}
    found = replace(found, records=[{**record, **none} for record in found.records])
    with pytest.raises(ConfigError, match="--x: .*bytes"):
        plotted.drawn(grouped([found]), "bytes", "accuracy", ["clients"])
    for several in ([found], [found, replace(found, config={**found.config, "method": {"name": "other"}})]):
        text = page(several)
        assert "MACs" in text and "Bytes of all" not in text and "Accuracy by bytes" not in text
    assert "Loss, training" in page([found])


def test_seeds_that_were_not_tested_yet_empty_no_line(tmp_path):
    runs = [
        facts.read(a_run(tmp_path / f"{seed}", tested, seed=seed)) for seed, tested in enumerate([SHARED, [{}, {}]])
    ]
    (axes,) = plotted.drawn(grouped(runs), "rounds", "accuracy", ["1"]).axes
    assert axes.get_ylabel() == f"test accuracy, {name_of('1')}"
    assert [(line.get_label(), len(line.get_xdata())) for line in axes.get_lines()] == [("fedhm", 2)]


def test_a_part_of_a_section_is_named_with_its_key(tmp_path):
    """Where a section's name tells settings apart, the names of its parts are left out."""
    found = facts.read(a_run(tmp_path / "run", SHARED))
    methods = ({"name": "fedavg", "server": {"name": name}} for name in ("mean", "fedadam"))
    servers = [replace(found, config={**found.config, "method": method}) for method in methods]
    assert [group.name for group in grouped(servers)] == ["method.server mean", "method.server fedadam"]
    assert [group.name for group in grouped([servers[0], found])] == ["fedavg", "fedhm"]


def test_the_commands(tmp_path, capsys):
    run = a_run(tmp_path / "run", [{"1": 0.5}])
    assert report.main([str(run)]) == 0 and (run / "report" / "report.html").exists()
    out = tmp_path / "f.pdf"
    assert plot.main([str(run), "--out", str(out), "--tex", str(tmp_path / "f.tex")]) == 0
    assert out.read_bytes().startswith(b"%PDF") and (tmp_path / "f.tex").exists()
    capsys.readouterr()
    assert plot.main([str(run), "--out", "f.gif"]) == 2 and "f.gif" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="0.3"):
        plotted.chosen_tiers([Group("all", (facts.read(run),))], ["0.3"])
