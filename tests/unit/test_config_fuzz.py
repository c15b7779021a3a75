"""Whatever an option, a file or the command line holds: a valid config, or clear lines that name the key.

Hypothesis draws a value, odd or legal, for each option of each name; then come the cases that were once wrong, by name.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fast import fast
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from fedmpi import registry
from fedmpi.config import explain, yaml_text
from fedmpi.config.load import MAX_PROBLEMS, load
from fedmpi.config.schema import Config
from fedmpi.errors import MAX_LINE, UserError
from fedmpi.running.forecast import forecast

# A path or a list of places stands for what is on this machine; other values of them say no more.
SECTIONS = {(section, name): options for section in registry.BUILT_IN for name, options in registry.built_in(section)}
SECTIONS |= {(key, ""): i.annotation for key, i in Config.model_fields.items() if explain.is_section(i.annotation)}
FAST = [(section, name) for section, name in SECTIONS if section != "method" or name == "fedhm"]
NUMBERS = st.sampled_from([0, -1, 1, 2, 3, 7, 100, 65_536, 2**31 - 1, 2**31, 2**63, 10**30, -(2**63), 10**400]) | (
    st.floats() | st.sampled_from([0.0, -0.0, 0.5, 1.0, 2.5, 1e-300, 1e18, 1e308])
)
TEXTS = st.sampled_from(
    [
        *("", " ", "1", "1e-3", "auto", "none", "name", "~", "yes", "../..", "/dev/null", "a\0b", "a\nb", "a\x1b[31m"),
        *("\u00e9\u4e2d", "x" * 300, "y" * 5_000, "'", '"', "$(id)", "{}", "%s%n", "-x", "\udc80", "C:\\x", ".inf"),
    ]
)
PLAIN = st.none() | st.booleans() | NUMBERS | TEXTS
ODD: SearchStrategy[Any] = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6
)


def legal(schema: dict[str, Any]) -> SearchStrategy[Any]:
    """Draws what a field's JSON schema allows, at its limits, too."""
    if "anyOf" in schema:
        return st.one_of([legal(one) for one in schema["anyOf"]])
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    kind = schema.get("type")
    least = schema.get("minimum", schema.get("exclusiveMinimum", -1e6))
    most = schema.get("maximum", schema.get("exclusiveMaximum", 1e6))
    if kind == "integer":
        return st.integers(int(least), int(most)) | st.integers(int(least), int(least) + 10)
    if kind == "number":
        return st.floats(least, most) | st.sampled_from([least, most, 1, 0.5])
    if kind == "array" and "prefixItems" in schema:
        return st.tuples(*map(legal, schema["prefixItems"])).map(list)
    if kind == "array":
        return st.lists(legal(schema["items"]), max_size=5).map(lambda drawn: sorted(drawn, key=repr, reverse=True))
    return st.booleans() if kind == "boolean" else st.sampled_from(["x", "~/data", "a.b:C"])


def said(section: str, name: str, key: str, value: Any) -> str:
    """Returns what is wrong with an option of this value; '' for a valid config."""
    path = f"{section}.{key}"
    overrides = [f"{section}.name={name}", (path, value)] if name else [(path, value)]
    if "path" in SECTIONS[section, name].model_fields and key != "path":
        overrides.append(("data.path", "nothing.npz"))
    try:
        config = load(None, overrides)
    except UserError as error:
        return error.text()
    assert load_again(config).to_dict() == config.to_dict()
    return ""


def load_again(config: Config) -> Config:
    values = yaml_text.parse(yaml_text.dump(config.to_dict())).value
    return load(None, [(key, value) for key, value in values.items()])


def check_lines(text: str, path: str) -> None:
    lines = text.split("\n")
    assert all(line and line.isprintable() and len(line) <= 4 * MAX_LINE for line in lines), text
    assert len(lines) <= MAX_PROBLEMS + 2 and "Traceback" not in text
    assert len(lines) == 1 or all(line.startswith("  ") for line in lines[1:]), text
    section = path.partition(".")[0]
    assert path in text or re.search(rf"\b({section}|clients|data|partition)\.\w", text), f"{path} is not named: {text}"


@pytest.mark.parametrize(("section", "name"), fast(*FAST, of=SECTIONS))
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[*HealthCheck], database=None)
@given(st.data())
def test_every_option_takes_a_value_or_is_one_clear_line(section: str, name: str, data: st.DataObject) -> None:
    properties = SECTIONS[section, name].model_json_schema()["properties"]
    key = data.draw(st.sampled_from([*properties]))
    value = data.draw(ODD | legal(properties[key]))
    if text := said(section, name, key, value):
        check_lines(text, f"{section}.{key}".removesuffix(".name"))


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[*HealthCheck], database=None)
@given(st.dictionaries(st.sampled_from([*Config.model_fields, "extends", "lr", "", "a.b"]), ODD, max_size=4) | ODD)
def test_every_file_is_a_config_or_clear_lines(tmp_path: Path, values: Any) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(json.dumps(values).encode(errors="replace"))
    try:
        load(path, [])
    except UserError as error:
        check_lines(error.text(), "a.yaml")


# What was found: words on the default config, and what they are.

REFUSED = {
    "a base for each of a billion atoms": "method.name=splitmix method.atom=1e-300",
    "more stages than anybody can build": "model.blocks=[2147483647]",
    "a width that is no number of channels": "model.width=1e308",
    "epochs without end": "method.name=standalone method.epochs_factor=1e308",
    "nothing in a list that is too short": "data.name=synthetic data.shape=[1,null]",
    "a rank of 400 digits": "method.layer_ranks={'fc':" + "9" * 400 + "}",
    "more threads than a machine has": "mpi.threads=2147483647",
    "a folder with a NUL": 'output.dir="a\\0b"',
}


@pytest.mark.parametrize("name", REFUSED)
def test_found_and_refused(name: str) -> None:
    words = REFUSED[name].split(" ")
    with pytest.raises(UserError) as refused:
        forecast(load(None, words), 1)
    check_lines(refused.value.text(), words[-1].partition("=")[0])
