"""The reference of every key, out of the schema: `python jobs/reference.py > configs/README.md`."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from fedmpi import registry
from fedmpi.config import explain, yaml_text
from fedmpi.config.fields import FREE, Section
from fedmpi.config.schema import NAMED_SECTIONS, Config, Train, canonical

_INTRO = """\
# Configurations, and a reference of every key

Generated: `python jobs/reference.py > configs/README.md`.

- **A YAML file stands alone**, or on the files that it `extends` (a path relative to its own folder, or a list of
  paths): what the file says goes on top. What is left out takes the defaults below. Without a file,
  `fedhm_delta_digits.yaml` is used.
- **`papers/`** has a grid file for each of FedHM, PriSM, Hermes and FDNNC, with what they print (`fedmpi grid`), and a
  `base_...yaml` with what a paper's runs share. One run is `papers/fedhm.yaml@cifar10_iid/fedhm`.
- **Overrides** are YAML, too: `train.lr=1e-3 'method.rank_ratio=[1,0.5]' train.schedule.name=cosine`.
- **Overriding a section's `name` resets that section** to the new name's own defaults; the section's other overrides
  apply on top, wherever they stand.
- **YAML as you mean it**: `1e-3` is a number; only `true` and `false` are booleans; unknown and duplicate keys are
  errors; anchors, aliases and tags are not read.
- **A line** below is a key (the names that have it, without any: all): what it takes, its default. What it does.
- **A resumed run** may change the keys marked *resume*, the number of ranks, and `rounds` unless the schedule depends
  on it (`cosine`). **A new run** with `--init-from RUN` may change every key with which RUN's server state still fits;
  what clients remember comes along where `method`, `model`, `clients`, `data`, `partition` and `seed` are RUN's.
"""
_SIGNS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
_FAR = 1e9
"""Limits beyond it only keep numbers finite."""


def allowed(schema: Mapping[str, Any]) -> str:
    """Returns what a JSON schema allows, in words: `number > 0`."""
    if "anyOf" in schema:
        return "/".join(map(allowed, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return "/".join(f"'{value}'" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("prefixItems") or [schema["items"]]
        return f"list of {f'{len(items)} ' if 'prefixItems' in schema else ''}{allowed(items[0])}"
    if kind in ("integer", "number"):
        bounds = [f" {sign} {schema[key]:g}" for key, sign in _SIGNS.items() if abs(schema.get(key, _FAR)) < _FAR]
        return kind + " and".join(bounds)
    return {"boolean": "true/false", "string": "text", "null": "null"}.get(str(kind), "section")


def _described(field: FieldInfo) -> str:
    return " ".join((field.description or "").split())


def _sections() -> Iterator[str]:
    yield from ["## Top level\n", *_lines([row for row in _rows(Config) if row.key in ("seed", "rounds")])]
    for section, info in Config.model_fields.items():
        kinds: dict[str, type[Section]] = {}
        if section in NAMED_SECTIONS:
            kinds = dict(registry.built_in(section))
        elif explain.is_section(info.annotation):
            kinds = {"": info.annotation}
        if kinds:
            yield f"## `{section}`: {_described(info) or ' '.join(str(info.annotation.__doc__).split())}\n"
            if section in NAMED_SECTIONS:
                yield from _names(f"{section}.name", kinds)
            if section == "train":
                yield from _names("train.schedule.name", explain.named_kinds(Train.model_fields["schedule"]))
            yield from _lines([row for name, options in kinds.items() for row in _rows(options, "", name)])


def _names(key: str, kinds: Mapping[str, type[Section]]) -> Iterator[str]:
    """Yields a line for each name that a section can have; the first is the default."""
    yield f"`{key}` (default `{next(iter(kinds))}`):\n"
    for name, kind in kinds.items():
        yield f"- `{name}{'NAME' if name.endswith(':') else ''}`: {explain.summary(kind)}"
    yield ""


class _Row(NamedTuple):
    key: str
    allowed: str
    default: str
    meaning: str
    owner: str
    """The name whose options have the key; empty for a key that is always there."""


def _rows(section: type[Section], above: str = "", owner: str = "") -> Iterator[_Row]:
    schemas = section.model_json_schema()["properties"]
    for key, info in section.model_fields.items():
        kinds = explain.named_kinds(info)
        for name, kind in kinds.items():
            yield from _rows(kind, f"{above}{key}.", name)
        if explain.is_section(info.annotation):
            yield from _rows(info.annotation, f"{above}{key}.", owner)
            continue
        values = allowed(schemas.get(key, {}))
        if (key == "name" and owner) or (kinds and "text" not in values):
            continue
        default = ""
        if not info.is_required():
            value = info.get_default(call_default_factory=True)
            default = yaml_text.flow(canonical(list(value) if isinstance(value, tuple) else value))
        meaning = _described(info).rstrip(".")
        if info.json_schema_extra == FREE:
            meaning += " *resume*"
        yield _Row(f"{above}{key}", values, default, meaning, owner)


def _lines(rows: Iterable[_Row]) -> Iterator[str]:
    """Yields one line for equal rows of several names; all of the section's names are not named."""
    rows = list(rows)
    everyone = {row.owner for row in rows if "." not in row.key}
    owners: dict[_Row, list[str]] = {}
    for row in rows:
        names = owners.setdefault(row._replace(owner=""), [])
        names += [row.owner] if row.owner not in names else []
    for row, names in owners.items():
        of = f" ({', '.join(names)})" if any(names) and {*names} != everyone else ""
        default = f", `{row.default}`" if row.default else ""
        yield f"- `{row.key}`{of}: {row.allowed}{default}. {row.meaning}"
    yield ""


def reference() -> str:
    """Returns the text of `configs/README.md`: a line for each key."""
    return "\n".join([_INTRO, *_sections()]) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
