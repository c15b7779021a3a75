"""The reference of every key, out of the schema: `python -m fedmpi.config.reference > configs/README.md`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, get_args

from pydantic.fields import FieldInfo

from fedmpi import registry
from fedmpi.config import words, yaml_text
from fedmpi.config.comparing import canonical
from fedmpi.config.described import description, summary
from fedmpi.config.fields import Section
from fedmpi.config.schema import NAMED_SECTIONS, Config

_INTRO = """\
# Configurations, and a reference of every key

Generated from the schema by `python -m fedmpi.config.reference > configs/README.md`; a test keeps it true.

    python -m fedmpi.main [CONFIG.yaml] [section.key=value ...] [--run-dir DIR] [--resume] [--resume-from RUN]
        [--plan | --plan=json] [--json] [--measure] [--probe-bf16] [--list] [--version]

- **A YAML file stands alone**, or on the one that it `extends` (a top-level key: a path relative to its own folder, or
  a list of paths; what the file says goes on top, as overrides do). What is left out takes the defaults below. The
  packaged `fedmpi/config/default.yaml` (FedHM on digits, sized for two laptop cores) is taken only where no
  `CONFIG.yaml` is given.
- **A file may have named cells**, as a paper's table has: `configs/fedhm/table3.yaml@cifar10_iid_fedhm` is the address
  of one, wherever a config is named, `extends` included. The key `cells` has a section for each, with whatever a file
  may say. What the file extends is read first, then what the cell extends; on top come the file's other settings, then
  the cell's. A run's folder is named after file and cell (`runs/table3_cifar10_iid_fedhm-...`), or
  without a file after method, model and data. A shipped cell is found by that name, too, as it was called when it was
  a file of its own: `fedmpi run fedhm/table3_cifar10_iid_fedhm` says its address and runs it.

      extends: base.yaml@setting
      rounds: 200
      cells:
        iid_fedhm: {extends: base.yaml@iid, method: {name: fedhm}}
        noniid_fedavg: {extends: base.yaml@noniid, method: {name: fedavg}, rounds: 300}
- **Overrides** are YAML, too: `train.lr=1e-3 method.rank_ratio=[1,0.5] train.schedule.name=cosine`. They work on the
  file given, or on the default. A section as value sets each of its keys: `train={lr: 0.01, momentum: 0}`.
- **Overriding a section's `name` resets that section** to the new name's own defaults, even if the name stays the
  same; the section's other overrides apply on top, in whatever order they stand. So `model.name=resnet18` is always
  the paper's whole net, and `model.name=resnet18 model.width=0.5` half of it.
- **YAML as you mean it**: `1e-3` is a number; only `true` and `false` are booleans (`no`, `on`, `yes` are text);
  unknown and duplicate keys are errors; aliases and tags are not read.
- **All problems are told at once**, one line each, before anything starts (exit code 2).
- **Numbers have upper limits** far above any sensible value, which are not listed below. The message about a number
  that is too large names the limit: `train.lr=1e13` gives `expected a number > 0 and <= 1e+12`.
- **A resumed run** (`--resume`) may change the keys marked *resume* below, the number of ranks, and `rounds` unless the
  schedule depends on it (`cosine`). Any other difference is refused, with the keys that differ. So are other
  data: `data.root` may change, the examples that are read may not.
- **A branch** (`--resume-from RUN`) may change every key with which the parent's server state still fits, but not the
  partition; where clients keep memories, nor `method`, `model` and `clients`.
"""


def reference() -> str:
    return "\n".join([_INTRO, *_sections()]) + "\n"


def _sections() -> Iterator[str]:
    yield "## Top level\n"
    yield from _table(Config, ["seed", "rounds"])
    for key, info in Config.model_fields.items():
        if key in NAMED_SECTIONS:
            yield f"## `{key}`: {_sentence(description(Config, key))}\n"
            yield f"`{key}.name` is one of the following; without it, `{next(iter(registry.BUILT_IN[key]))}`.\n"
            for name, options in registry.built_in(key):
                yield from _named(key, f"{name}..." if name.endswith(":") else name, options)
        elif words.is_section(info.annotation):
            yield f"## `{key}`: {_sentence(description(Config, key))}\n"
            yield from _section(key, info.annotation)


def _sentence(text: str) -> str:
    text = text.rstrip(".")
    return text[:1].lower() + text[1:]


def _section(path: str, section: Any) -> Iterator[str]:
    yield from _table(section, section.model_fields)
    for key, info in section.model_fields.items():
        kind = words.kind_of(info)
        for member in get_args(kind.core) if kind.is_named else ():
            yield from _named(f"{path}.{key}", words.name_of(member), member)


def _named(path: str, name: str, options: type[Section]) -> Iterator[str]:
    yield f"### `{path}.name: {name}`\n"
    yield f"{summary(options)}.\n"
    if keys := [key for key in options.model_fields if key != "name"]:
        yield from _table(options, keys)


def _table(section: type[Section], keys: Iterable[str]) -> Iterator[str]:
    fields = [(key, section.model_fields[key]) for key in keys]
    rows = [(f"`{key}`", words.allowed(info), _default(info), _meaning(section, key)) for key, info in fields]
    yield "| key | allowed | default | meaning |"
    yield "|---|---|---|---|"
    yield from ("| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in rows)
    yield ""


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "(must be given)"
    value = info.get_default(call_default_factory=True)
    if isinstance(value, Section):
        return f"`{{name: {words.name_of(type(value))}}}`" if "name" in type(value).model_fields else "(its defaults)"
    return f"`{yaml_text.flow(canonical(value))}`"


def _meaning(section: type[Section], key: str) -> str:
    extra = section.model_fields[key].json_schema_extra
    is_free = isinstance(extra, dict) and extra.get("changes_results") is False
    return description(section, key) + " *resume*" * is_free


if __name__ == "__main__":
    print(reference(), end="")
