"""configs/: every file is valid, the reference is what the schema says."""

import runpy
from pathlib import Path

import pytest

from fedmpi import registry
from fedmpi.config.address import CONFIGS
from fedmpi.config.explain import keys
from fedmpi.config.load import load
from fedmpi.config.schema import Clients, Evaluation, Train
from fedmpi.config.yaml_text import leaves, parse

reference = runpy.run_path(str(CONFIGS.with_name("jobs") / "reference.py"))["reference"]
UNSET = {"evaluation.on", "method.aggregate", "clients.availability", "train.loss"}
UNSET |= {f"method.aggregate.{key}" for key in ("name", "trim", "attackers", "selected", "bound")}
"""What a grid itself sets where it tunes on validation data, aggregates (test_aggregate.py has them), a user's file."""


def test_readme_is_what_the_schema_says() -> None:
    text = (CONFIGS / "README.md").read_text(encoding="utf-8")
    assert text == reference(), "run: python jobs/reference.py > configs/README.md"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_config_is_valid_and_says_what_it_is(path: Path) -> None:
    config = load(path, [])
    assert config.seed == 0
    assert config.data.name in path.stem
    assert path.read_text().startswith("# ")


def test_it_is_short_and_has_every_key_and_name() -> None:
    text = reference()
    assert "None" not in text and len(text.split()) <= 6_600
    for section in registry.BUILT_IN:
        for name, options in registry.built_in(section):
            assert f"- `{name}" in text and options.model_fields["name"].description
            assert all(f"- `{key}`" in text or f"- `{key}." in text for key in {*options.model_fields} - {"name"})


def test_the_default_becomes_the_papers_net_by_name() -> None:
    config = load(None, ["model.name=resnet18", "data.name=cifar10"])
    assert (config.model.width, config.model.blocks) == (1.0, (2, 2, 2, 2))
    assert load(None, ["method.name=fedavg"]).method.name == "fedavg"


def test_a_shipped_config_sets_every_option() -> None:
    """Except where a run goes and what it writes, and data and partitions, which users have of their own."""
    kinds = [("clients", Clients), ("train", Train), ("evaluation", Evaluation)]
    for section in ("model", "method"):
        kinds += [(section, options) for _, options in registry.built_in(section)]
    documents = [parse(path.read_text()).value for path in CONFIGS.rglob("*.yaml")]
    text = str([f".{'.'.join(path)}.{value}" for document in documents for path, value in leaves(document)])
    for section, options in kinds:
        unset = [key for key in keys(options, f"{section}.") if f".{key}." not in text and f"'{key}'" not in text]
        assert UNSET.issuperset(unset), options
