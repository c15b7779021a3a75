"""What must hold between sections, checked once every section is valid by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fedmpi.config.schema import Config
from fedmpi.config.yaml_text import Path


def problems(config: Config) -> Iterator[tuple[str, str]]:
    """(dotted key, message) of everything wrong between sections; options classes add theirs by `problems(config)`."""
    clients = config.clients
    if clients.per_round > clients.count:
        found = f"{clients.per_round} clients per round, but clients.count is {clients.count}"
        yield "clients.per_round", f"{found}; allowed: 1 to {clients.count}"
    yield from _tier_problems(config)
    for section in config.sections.values():
        find = getattr(section, "problems", None)
        if find is not None:
            yield from find(config)


def _tier_problems(config: Config) -> Iterator[tuple[str, str]]:
    count, blocks = config.clients.count, config.clients.tier_blocks
    tiers = tuple(getattr(config.method, "tiers", (1.0,)))
    has = f"method {config.method.name!r} has {len(tiers)} tier{'s' * (len(tiers) > 1)}"
    if not blocks:
        if count < len(tiers):
            yield "clients.count", f"{count} clients, but {has}; allowed: a client or more for each tier"
        return
    if len(blocks) != len(tiers):
        todo = "give one block for each tier, or [] for equal blocks"
        yield "clients.tier_blocks", f"{len(blocks)} blocks, but {has}; {todo}"
    if sum(blocks) != count:
        todo = "make them equal, or give [] for equal blocks"
        yield "clients.tier_blocks", f"the blocks have {sum(blocks)} clients, but clients.count is {count}; {todo}"


def split(key: str) -> Path:
    """`method.rank_ratio[2]` as ("method", "rank_ratio", 2)."""
    return tuple(int(part[1:-1]) if part.startswith("[") else part for part in re.findall(r"\[\d+\]|[^.\[\]]+", key))
