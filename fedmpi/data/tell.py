"""How long work on data says how far it is. Imports neither torch nor numpy."""

from __future__ import annotations

from collections.abc import Callable

Tell = Callable[[int, int], None]
"""Called with what is done (files, members, bytes ...) and the total, 0 if unknown."""
