"""What .tar and .zip have in common: members with a name, a size and a kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Member:
    """A member as its header declares it."""

    name: str
    num_bytes: int
    kind: str
    """`file`, `folder`, or in words what it is instead, as `a link`."""


class Content(Protocol):
    """The bytes of a member."""

    def read(self, num_bytes: int) -> bytes:
        """So many bytes; fewer only at the end."""
