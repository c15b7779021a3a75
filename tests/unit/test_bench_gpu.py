"""`jobs/bench.py gpu`: its dry run, a section that fails, and how results of pytest are read."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fast import fast
from golden_file import Told
from pretend import device
from pretend.bench import ON_IT, benchmarked

from fedmpi.studies.bench import gpu, gpu_runs, gpu_steps
from fedmpi.studies.bench.sections import DRY, Measuring, SectionError

TESTS = Path(__file__).parents[1]
possible = pytest.mark.skipif(not device.IS_POSSIBLE, reason="this torch registers devices in C++ only")


@pytest.mark.parametrize("names", fast(["machine", "copies"], of=[["machine", "copies"], list(gpu.SECTIONS)]))
def test_a_dry_run_writes_its_sections_without_numbers(
    tmp_path: Path, names: list[str], capfd: pytest.CaptureFixture
) -> None:
    out = tmp_path / "gpu.md"
    code = gpu.main(["gpu", "--dry-run", "--only", ",".join(names), "--out", str(out)])
    assert code == 0, out.read_text()
    text, printed = out.read_text(), capfd.readouterr().out
    head, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    assert "no GPU" in head and [section.partition("\n")[0] for section in sections] == [
        gpu.SECTIONS[name].title for name in names
    ]
    for name, section in zip(names, sections, strict=True):
        assert section.rstrip().endswith(f"\nTime: {DRY}."), section
        rows = [line for line in section.splitlines() if line.startswith("| ") and "---" not in line][1:]
        assert all(row.endswith(f" {DRY} |") for row in rows), section
        assert name == "machine" or section.count(DRY) > 1
        assert section.rstrip() in printed


@possible
@pytest.mark.slow
def test_a_dry_run_on_the_pretend_accelerator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every section's process and all ranks have it."""
    places = (TESTS / "pretend" / "everywhere", TESTS, os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, places)))
    out = tmp_path / "gpu.md"
    assert gpu.main(["gpu", "--dry-run", *ON_IT, "--out", str(out)]) == 0, out.read_text()
    assert f"| gram | {device.NAME} |" in out.read_text()


@possible
@pytest.mark.parametrize("name", fast("memory", of=["speed", "memory", "factorization", "copies", "energy"]))
def test_a_section_on_the_pretend_accelerator(name: str) -> None:
    with benchmarked() as log, device.log.kept() as events:
        assert DRY in "".join(gpu.SECTIONS[name].lines(_dry(*ON_IT)))
    assert device.of(events, "new"), "nothing was computed on the device"
    assert ("replayed" in log) == (name in ("speed", "memory", "energy"))


@possible
def test_peaks_of_memory_have_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three rank ratios: computed, then replayed once to be compared, and in five steps."""
    with benchmarked() as log:
        gpu_steps.memory(_dry(*ON_IT, "method.rank_ratio=[1,0.5,0.25]"))
    assert log == 3 * ["forgotten"] + 3 * ["forgotten", "recorded", *6 * ["replayed"]]


def test_the_loop_by_hand_has_the_precision_of_the_run() -> None:
    for precision, dtype in {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}.items():
        found = []
        with _dry(f"train.precision={precision}").setup() as setup:
            by_hand = gpu_steps.ByHand(setup, 0)
            conv = next(part for part in by_hand._net.modules() if isinstance(part, torch.nn.Conv2d))
            conv.register_forward_hook(lambda part, inputs, outputs, found=found: found.append(outputs.dtype))
            before = by_hand._scaler.get_scale()
            by_hand.run(1)
        assert found == [dtype] and before == (1024.0 if precision == "fp16" else 1.0)


@pytest.mark.parametrize(("capability", "precision"), [((7, 0), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16")])
def test_half_precision_is_one_that_the_gpu_has(
    capability: tuple[int, int], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert gpu_steps._half_precision() == precision


def test_a_section_that_fails_says_so_and_the_next_goes_on(tmp_path: Path, told: Told) -> None:
    """One ends with an error, one is not through in time, one is."""
    program = [sys.executable, "-c"]
    asked = {
        "one": ("First", [*program, "print('| a row |'); raise ValueError('what was wrong')"], 600.0),
        "two": ("Second", [*program, "import time; time.sleep(6000)"], 1.0),
        "three": ("Third", [*program, "print('| a table |')"], 600.0),
    }
    assert gpu.written(tmp_path / "out.md", "the command", asked, 0.0, is_dry=True) == 1
    told((tmp_path / "out.md").read_text())


def test_a_section_has_what_those_before_it_left_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 s: the first takes 20 of the 60 that the others leave it, the second 10 of 60, the last has the rest."""
    now, limits, takes = 0.0, [], iter([20.0, 10.0, 1.0])

    def printed(words: list[str], limit_s: float) -> tuple[list[str], list[str], str]:
        nonlocal now
        limits.append(limit_s)
        now += next(takes)
        return [], [], ""

    monkeypatch.setattr(gpu, "_printed", printed)
    monkeypatch.setattr(gpu, "time", SimpleNamespace(perf_counter=lambda: now))
    asked = {name: (name, [], share_s) for name, share_s in {"one": 30.0, "two": 20.0, "three": 20.0}.items()}
    assert gpu.written(tmp_path / "out.md", "the command", asked, 100.0, is_dry=False) == 0
    assert limits == [60.0, 60.0, 70.0]


def _dry(*words: str) -> Measuring:
    return gpu._measuring(gpu._arguments(["gpu", "--dry-run", *words]))


def test_a_section_of_bits_that_differ_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    digests = iter(["one", "two"])
    monkeypatch.setattr(gpu_runs, "_digest", lambda *_: (next(digests), ""))
    assert gpu._measured(gpu_runs.bits, _dry()) == 1
    said = capsys.readouterr()
    assert "`one` |" in said.out and "`two` |" in said.out and said.err == "the digests differ\n"


def test_a_run_that_fails_says_why(capfd: pytest.CaptureFixture) -> None:
    with pytest.raises(SectionError, match="1 rank.*exit code 1"):
        gpu_runs.bits(_dry().but("train.lr=1e9"))
    assert "cause: DivergenceError" in capfd.readouterr().err


def test_a_broken_import_fails_the_section_of_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tests" / "gpu").mkdir(parents=True)
    (tmp_path / "tests" / "gpu" / "test_one.py").write_text("import no_such_module")
    monkeypatch.setattr(gpu_runs, "CONFIGS", tmp_path / "configs")
    with pytest.raises(SectionError) as caught:
        gpu_runs.tests(_dry())
    line = next(line for line in caught.value.lines if "tests.gpu.test_one" in line)
    assert "ModuleNotFoundError" in line and "no_such_module" in line


def test_nothing_is_recorded_after_a_recording_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    first = [gpu_steps.OTHER_BITS, "", "no room"]
    answers = iter(first)
    monkeypatch.setattr(gpu_steps, "replay_steps", lambda *_: [next(answers)])
    monkeypatch.setattr(gpu_steps, "initial_values", lambda *_: None)
    data = SimpleNamespace(device=torch.device("cuda"), train_y=[0])
    replays = gpu_steps.Replays(lambda action: action)
    *found, last = [replays.begin(SimpleNamespace(data=data, net=None), tier) for tier in "abcd"]
    assert found == first and "rank ratio c " in last


def test_each_solver_is_a_row() -> None:
    rows = [line.split("|")[1].strip() for line in gpu_steps.factorization(_dry())[2:]]
    assert rows == ["gram", "exact", "auto"]


def test_the_help_says_the_shares() -> None:
    assert sum(section.share_s for section in gpu.SECTIONS.values()) == gpu._TOTAL_S == 600
    said = ", ".join(f"{name} {section.share_s:.0f} s" for name, section in gpu.SECTIONS.items())
    assert "within 10 minutes" in (gpu.__doc__ or "") and said in " ".join((gpu.__doc__ or "").split())


def test_the_table_of_bits_says_after_how_many_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_runs, "_digest", lambda *_: ("one", ""))
    assert "digest after 3 rounds" in gpu_runs.bits(_dry("rounds=3"))[0]


def test_the_file_has_the_whole_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_printed", lambda *_: ([], [], ""))
    words = ["gpu", "method.rank_ratio=[1,0.5]", "--dry-run", "--only", "speed,bits", "--out", str(tmp_path / "a.md")]
    assert gpu.main(words) == 0
    command = "python jobs/bench.py gpu 'method.rank_ratio=[1,0.5]' --dry-run --only bits,speed"
    assert (tmp_path / "a.md").read_text().splitlines()[2] == f"    {command}"


def test_numbers_are_shown_where_they_are_measured() -> None:
    assert Measuring((), is_dry=False).shown(1234.56, "{:,.1f} MB") == "1,234.6 MB"
    assert Measuring((), is_dry=True).shown(1234.56, "{:,.1f} MB") == DRY


OUTCOMES = """<testsuites><testsuite>
<testcase classname="a.b" name="one"/>
<testcase classname="a.b" name="two"><failure message="assert 1 == 2&#10;more">a trace</failure></testcase>
<testcase classname="a.b" name="three"><skipped type="pytest.skip" message="no GPU"/></testcase>
<testcase classname="a.c" name="four"><error message="at setup"/></testcase>
</testsuite></testsuites>"""


def test_outcomes_of_tests(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(OUTCOMES)
    assert list(gpu_runs._outcomes(report)) == [
        ("passed", "a.b::one", ""),
        ("failed", "a.b::two", "assert 1 == 2"),
        ("skipped", "a.b::three", "no GPU"),
        ("failed", "a.c::four", "at setup"),
    ]
