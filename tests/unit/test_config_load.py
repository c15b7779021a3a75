"""From text and overrides to a Config or to every problem at once, with stand-in tables."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from fedmpi import registry
from fedmpi.config.fields import Counts, Positive, Section, Shares, free
from fedmpi.config.load import load
from fedmpi.config.schema import Config
from fedmpi.errors import ConfigError


class Digits(Section):
    name: str = "digits"


class Cifar(Section):
    name: str = "cifar10"
    root: str = free("~/data")


class Iid(Section):
    name: str = "iid"

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        if config.clients.count > 1000:
            yield "clients.count", "more clients than examples"


class Net(Section):
    name: str = "net"
    width: Positive = 1.0
    blocks: Counts = (2, 2)


class Open(Section):
    name: str


class FedAvg(Section):
    name: str = "fedavg"


class FedHM(Section):
    name: str = "fedhm"
    rank_ratio: Shares = (1.0, 0.5)
    tau: Annotated[float, Field(gt=0)] | Literal["auto"] = "auto"
    layer_ranks: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)

    @property
    def tiers(self) -> tuple[float, ...]:
        return self.rank_ratio


NAMES = {
    "data": {"digits": f"{__name__}:Digits", "cifar10": f"{__name__}:Cifar"},
    "partition": {"iid": f"{__name__}:Iid"},
    "model": {"net": f"{__name__}:Net", "zoo:": f"{__name__}:Open"},
    "method": {"fedavg": f"{__name__}:FedAvg", "fedhm": f"{__name__}:FedHM"},
}

HM_KEYS = "layer_ranks, name, rank_ratio, tau"
KNOWN = ", ".join(sorted(Config.model_fields))


@pytest.fixture(autouse=True)
def other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "BUILT_IN", NAMES)


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
    assert (config.data.name, config.model.name, config.method.name) == ("digits", "net", "fedavg")
    assert config.clients.count == 20
    assert read("clients:\n# nothing\n").clients == config.clients
    assert config.where.endswith("a.yaml")


def test_values_are_yaml_1_2(read: Any) -> None:
    config = read("train: {lr: 1e-3}\nmethod: {name: fedhm, tau: .inf}\noutput: {dir: no}")
    assert config.train.lr == 0.001 and isinstance(config.train.lr, float)
    assert config.method.tau == float("inf")
    assert config.output.dir == "no"


def test_a_name_resets_its_section_whatever_the_order(read: Any) -> None:
    text = "model: {name: net, width: 3, blocks: [1]}\ntrain: {schedule: {milestones: [3]}}"
    for order in (["model.name=net", "model.width=2"], ["model.width=2", "model.name=net"]):
        model = read(text, *order).model
        assert (model.width, model.blocks) == (2.0, (2, 2))
    assert read(text, "model.width=2").model.blocks == (1,)
    assert read(text, "model={name: net, width: 2}").model.blocks == (2, 2)
    assert read(text, "model={width: 2}").model.blocks == (1,)
    assert read(text).train.schedule.milestones == (3,)
    assert read(text, "train.schedule.name=step").train.schedule.milestones == ()
    assert read(text, "train.schedule.factor=0.5", "train.schedule.name=step").train.schedule.factor == 0.5


def test_overrides_of_lists_and_open_names(read: Any) -> None:
    config = read("", "method.name=fedhm", "method.rank_ratio=[1,0.5,.25]", "clients.tier_blocks=[10,5,5]")
    assert config.method.rank_ratio == (1.0, 0.5, 0.25) and config.clients.tier_blocks == (10, 5, 5)
    assert read("", "model.name=zoo:resnet50").model.name == "zoo:resnet50"
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
model: {name: nett}
partition: iid
lr: 1
"""
    expected = f"""\
a.yaml: 13 problems
seed (line 1)  Input should be greater than or equal to 0, got -1
lr (line 11)  no such key. Did you mean 'train.lr'? Known keys: {KNOWN}
a (command line)  no such key. Known keys: {KNOWN}
partition (line 10)  expected a section, got 'iid'; set its keys one by one, as partition.name=iid
model.name (line 9)  no model 'nett'. Did you mean 'net'? Known names: net, zoo:..., or your own package.module:Class
method.rank_ratio[1] (line 5)  Input should be less than or equal to 1, got 2
method.tau (line 6)  Input should be greater than 0 or 'auto', got 0
method.layer_ranks.'layer4.*' (line 7)  Input should be greater than or equal to 1, got 0
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
    with pytest.raises(ConfigError, match="cifar10_fedhn.yaml: no such file. Did you mean '.*/cifar10_fedhm.yaml'?"):
        load(str(tmp_path / "cifar10_fedhn.yaml"), [])
    for path in (str(tmp_path), "a\0b", "a" * 5000):
        with pytest.raises(ConfigError, match="cannot be read"):
            load(path, [])
