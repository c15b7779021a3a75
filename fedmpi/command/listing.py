"""`--list`: every name that a config can use, a line each."""

from __future__ import annotations

from fedmpi import registry
from fedmpi.config.described import summary_in

_TITLES = {"method": "methods", "model": "models", "data": "data sets", "partition": "partitions"}


def listing() -> str:
    """Built-in names with their summaries; those of installed packages with where they are. Imports none of them."""
    width = max(len(name) for section in _TITLES for name in registry.names(section)) + 4
    lines = []
    for section, title in _TITLES.items():
        lines.append(f"{title} ({section}.name)")
        places = registry.BUILT_IN[section].items()
        found = {name: summary_in(place.partition(":")[0], name) for name, place in places}
        found = {name: f"installed: {point.value}" for name, point in registry.installed(section).items()} | found
        for name in registry.names(section):
            lines.append(f"  {name + 'NAME' * name.endswith(':'):{width}}  {found[name]}")
        lines += (f"  {name:{width}}  installed, not used: {said}" for name, said in registry.hidden(section).items())
        lines += (f"  {name:{width}}  unclear; write {said}" for name, said in registry.unclear(section).items())
    return "\n".join(lines)
