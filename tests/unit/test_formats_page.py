"""`fedmpi/store/README.md` names every file, key, group and attribute that a run writes."""

import re
from pathlib import Path

import h5py
import pytest
from fast import fast
from small_runs import undisturbed

from fedmpi.clock import STAGES
from fedmpi.report.records import read_records
from fedmpi.store.manifest import read_starts
from fedmpi.store.run_dir import RunDir

PAGE = (Path(__file__).resolve().parents[2] / "fedmpi" / "store" / "README.md").read_text()


@pytest.mark.parametrize("method", fast("fedhm", of=["fedhm", "topk"]))
def test_everything_is_on_the_page(tmp_path: Path, method: str) -> None:
    undisturbed(tmp_path, f"method.name={method}", "evaluation.personal=on", "evaluation.bn=restat")
    run = RunDir(tmp_path / "undisturbed")
    names = [path.name for path in run.path.iterdir() if path.name[0] != "."]
    names += [key for record in read_records(run) for key in record]
    names += [key for start in read_starts(run) for key in start]
    for path in run.path.rglob("*.h5"):
        with h5py.File(path) as file:
            own = {name for name in file.attrs if not name.endswith("_digest") or name == "data_digest"}
            names += [*own, *file]
    assert {name for name in names if name not in PAGE} == set()


def table(head: str) -> dict[str, str]:
    """The rows of the page's table with this head: each name in the first column -> the second column."""
    lines = PAGE.partition(f"| {head} |")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [line.strip("| ").split(" | ", 1) for line in lines]
    return {name: text for names, text in rows for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize(
    ("words", "brings"),
    [
        (("method.name=fedhm",), {"tiers", "method"}),
        (("method.name=prism",), {"draws"}),
        (("method.name=fedavg", "evaluation.personal=on"), {"clients"}),
        (("method.name=fedavg", "train.lr=1e12", "train.on_divergence=upload_last_finite"), {"restored"}),
        (("method.name=fedavg", "train.precision=fp16"), {"left_out_steps"}),
        (("method.name=fedavg", "devices.name=classes"), {"simulated_s", "simulated_total_j", "devices"}),
    ],
)
def test_records_have_the_fields_that_the_page_says(tmp_path: Path, words: tuple[str, ...], brings: set[str]) -> None:
    """None that it does not name, and all but those of which it says when they are absent."""
    undisturbed(tmp_path, *words, "rounds=2")
    documented = table("key | value")
    always = {name for name, text in documented.items() if "absent" not in text}
    records = list(read_records(RunDir(tmp_path / "undisturbed")))
    for record in records:
        assert always <= set(record) <= set(documented)
    assert brings <= {key for record in records for key in record}
    assert {"losses", "restored", "left_out_steps"} <= set(documented) - always


def test_stages_are_on_the_page(tmp_path: Path) -> None:
    assert list(table("stage | what the rank does")) == list(STAGES)
    undisturbed(tmp_path, "method.name=fedavg", "rounds=1")
    for record in read_records(RunDir(tmp_path / "undisturbed")):
        assert set(record["seconds"]) == {*STAGES, "wall"}
