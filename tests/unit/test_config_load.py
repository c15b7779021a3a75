"""From text and overrides to a Config or to every problem at once."""

from pathlib import Path
from typing import Any

import pytest
from data_fixtures import refusal

from fedmpi import registry
from fedmpi.config.load import load
from fedmpi.config.schema import Config
from fedmpi.errors import ConfigError

HM_KEYS = ", ".join(sorted(registry.options("method", "fedhm").model_fields))
KNOWN = ", ".join(sorted(Config.model_fields))
NETS = ", ".join(registry.BUILT_IN["model"]).replace("torchvision:", "torchvision:...")


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def read(text: str | bytes, *overrides: str) -> Config:
        path = tmp_path / "a.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load(str(path), overrides)

    return read


@pytest.fixture
def lines(read: Any) -> Any:
    """The error's text, with the folder of the file left out."""

    def lines(text: str | bytes, *overrides: str) -> list[str]:
        with pytest.raises(ConfigError) as error:
            read(text, *overrides)
        folder = str(Path(error.value.where).parent) + "/"
        return [line.strip() for line in str(error.value).replace(folder, "").splitlines()]

    return lines


def test_a_file_stands_alone(read: Any) -> None:
    config = read("")
    assert (config.data.name, config.model.name, config.method.name) == ("digits", "resnet18", "fedavg")
    assert config.clients.count == 20
    assert read("clients:\n# nothing\n").clients == config.clients
    assert config.where.endswith("a.yaml")


def test_values_are_yaml_1_2(read: Any) -> None:
    config = read("train: {lr: 1e-3}\nmethod: {name: fedhm, tau: .inf}\noutput: {dir: no}")
    assert config.train.lr == 0.001 and isinstance(config.train.lr, float)
    assert config.method.tau == float("inf")
    assert config.output.dir == "no"


def test_a_name_resets_its_section_whatever_the_order(read: Any) -> None:
    text = "model: {name: resnet18, width: 0.5, blocks: [1, 1]}\ntrain: {schedule: {milestones: [3]}}"
    for order in (["model.name=resnet18", "model.width=0.25"], ["model.width=0.25", "model.name=resnet18"]):
        model = read(text, *order).model
        assert (model.width, model.blocks) == (0.25, (2, 2, 2, 2))
    assert read(text, "model.width=0.25").model.blocks == (1, 1)
    assert read(text, "model={name: resnet18, width: 0.25}").model.blocks == (2, 2, 2, 2)
    assert read(text, "model={width: 0.25}").model.blocks == (1, 1)
    assert read(text).train.schedule.milestones == (3,)
    assert read(text, "train.schedule.name=step").train.schedule.milestones == ()
    assert read(text, "train.schedule.factor=0.5", "train.schedule.name=step").train.schedule.factor == 0.5


def test_overrides_of_lists(read: Any) -> None:
    config = read("", "method.name=fedhm", "method.rank_ratio=[1,0.5,.25]", "clients.tier_blocks=[10,5,5]")
    assert config.method.rank_ratio == (1.0, 0.5, 0.25) and config.clients.tier_blocks == (10, 5, 5)
    assert read("seed: 1", "seed=2", "seed=3").seed == 3


def test_all_problems_at_once_each_with_its_place(lines: Any) -> None:
    text = """\
seed: -1
method:
  name: fedhm
  rank_ration: [1]
  rank_ratio: [1, 2]
  tau: 0
  layer_ranks: {"layer4.*": 0}
train: {lr: "1e-3", on_divergence: drp, schedule: {fctor: 1}}
model: {name: resnet8}
partition: iid
lr: 1
"""
    expected = f"""\
a.yaml: 13 problems
seed (line 1)  Input should be greater than or equal to 0, got -1
lr (line 11)  no such key. Did you mean 'train.lr' or 'method.server.lr'? Known keys: {KNOWN}
a (command line)  no such key. Known keys: {KNOWN}
partition (line 10)  expected a section, got 'iid'; set its keys one by one, as partition.name=iid
model.name (line 9)  no model 'resnet8'. Did you mean 'resnet18'? Known names: {NETS}, or your own package.module:Class
method.rank_ratio[1] (line 5)  Input should be less than or equal to 1, got 2
method.tau (line 6)  Input should be greater than or equal to 0.002 or 'auto', got 0
method.layer_ranks.'layer4.*' (line 7)  Input should be 'dense' or greater than 0 or greater than or equal to 1, got 0
method.rank_ration (line 4)  no such key. Did you mean 'method.rank_ratio'? Known keys: {HM_KEYS}
train.lr (line 8)  Input should be a valid number, got '1e-3'
train.schedule.fctor (line 8)  no such key. Did you mean 'train.schedule.factor'? Known keys: factor, milestones, name
train.on_divergence (line 8)  Input should be 'fail', 'drop' or 'upload_last_finite', got 'drp'. Did you mean 'drop'?
clients.count (command line)  Input should be a valid integer, got true
"""
    found = lines(text, "a.b.c.d=1", "clients.count=true")
    assert sorted(found) == sorted(expected.splitlines())
    assert found[0] == expected.splitlines()[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- 1", "a.yaml: expected sections (`seed: 1`, `data: ...`), got [1] on the top level"),
        ("seed: 1\nrounds: [", "a.yaml: line 2: not valid YAML: expected the node content, but found '<stream end>'"),
        ("seed: 1\nseed: 2", "a.yaml: line 2: the key 'seed' is given twice, first on line 1; remove one"),
        ("seed: &a 1\nrounds: *a", "a.yaml: line 1: anchors (&a) are not read; remove it (or quote the text)"),
        ("seed: *a", 'a.yaml: line 1: aliases (*a) are not read; write the value, or quotes around the text: ["*a"]'),
        ("seed: !!python/none x", "a.yaml: line 1: tags (tag:yaml.org,2002:python/none) are not read; remove it"),
        ("x: " + "[" * 2000, "a.yaml: line 1: not valid YAML: maximum recursion depth exceeded"),
        (b"seed: 1\nx: \xff", "a.yaml: line 2: not valid UTF-8 (byte 0xff)"),
    ],
)
def test_one_clear_line_for_a_bad_file(lines: Any, text: str | bytes, expected: str) -> None:
    assert lines(text) == [expected]


def test_long_values_and_many_problems_are_cut(lines: Any) -> None:
    (line,) = lines("", f"rounds={'x' * 398}")
    assert line.endswith("(400 characters)") and len(line) < 160
    found = lines("clients: {tier_blocks: [" + "0, " * 200 + "0]}")
    assert len(found) == 52 and found[-1] == "... and 151 more"


def test_missing_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "cifar10_fedhm.yaml").write_text("")
    line = refusal(load, str(tmp_path / "cifar10_fedhn.yaml"), [])
    assert f"cifar10_fedhn.yaml: no such file. Did you mean '{tmp_path}/cifar10_fedhm.yaml'?" in line
    for path in (str(tmp_path), "a\0b", "a" * 5000):
        assert "cannot be read" in refusal(load, path, [])
