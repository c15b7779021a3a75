"""The configs that the repository has: files, cells of files, and the parts that only serve cells."""

from pathlib import Path

from fedmpi.config import yaml_text
from fedmpi.config.address import CONFIGS

FILES = {path.relative_to(CONFIGS).as_posix(): yaml_text.parse(path.read_text()) for path in CONFIGS.rglob("*.yaml")}
"""By path under `configs/`."""


def cells_of(name: str) -> list[str]:
    """The addresses of a file's cells under `configs/`, in order; empty for a file that has none."""
    return [f"{name}@{cell}" for cell in FILES[name].value.get("cells", ())]


EXPERIMENTS = [cell for name in sorted(FILES) if not Path(name).stem.startswith("base") for cell in cells_of(name)]
