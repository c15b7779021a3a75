"""Where the methods, models, data sets and partitions of a run come from that are not built in.

The manifest notes it for each start; a resume whose source differs says so, because its rounds may differ, too.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from fedmpi import registry
from fedmpi.config.schema import NAMED_SECTIONS, Config
from fedmpi.disk.plain import read_bytes
from fedmpi.store import manifest
from fedmpi.store.run_dir import RunDir

_KEY = "brought"
_MAX_SOURCE_BYTES = 2**27


def noted(config: Config) -> dict[str, Any]:
    """What the manifest notes: an entry for each section that names something not built in; empty if none does."""
    found = {section: provenance(section, getattr(config, section).name) for section in NAMED_SECTIONS}
    found = {section: entry for section, entry in found.items() if entry}
    return {_KEY: found} if found else {}


def provenance(section: str, name: str) -> dict[str, str]:
    """The file of the module that defines what `name` means, its digest, and the distribution it is installed by.

    Empty for a built-in name. A module without a file has no `file` and no `digest`.
    """
    if registry.is_built_in(section, name):
        return {}
    found = registry.made(section, name)
    entry = {"name": name, "module": str(getattr(found, "__module__", name.partition(":")[0]))}
    if file := getattr(sys.modules.get(entry["module"]), "__file__", None):
        entry["file"] = file
        with contextlib.suppress(OSError):
            entry["digest"] = blake2b(read_bytes(file, _MAX_SOURCE_BYTES), digest_size=16).hexdigest()
    top = entry["module"].partition(".")[0]
    installed = importlib.metadata.packages_distributions().get(top, [])
    if installed:
        entry["distribution"] = f"{installed[0]} {importlib.metadata.version(installed[0])}"
    return entry


def changes(run_dir: RunDir, config: Config) -> str:
    """One line about sources that are not those of the run's last start; empty if they are, or are not known."""
    starts = reversed(manifest.read_starts(run_dir))
    before: Any = next((start[_KEY] for start in starts if isinstance(start.get(_KEY), Mapping)), {})
    now = noted(config).get(_KEY, {})
    told = []
    for section, entry in now.items():
        old = before.get(section)
        if isinstance(old, Mapping) and old.get("digest") not in (None, entry.get("digest")):
            told.append(f"{section} {entry['name']} ({entry.get('file', entry['module'])})")
    if not told:
        return ""
    return f"the source of {' and of '.join(told)} has changed since the last start; the rounds from here on may differ"
