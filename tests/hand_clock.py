"""A clock for tests: it stands still until a test moves it, or what is tested sleeps by it."""

from collections.abc import Callable


class HandClock:
    """`later` has what happens when it comes to a time, which it does in `sleep` only."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.later: dict[float, Callable[[], object]] = {}

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        for due_s in sorted(due_s for due_s in self.later if due_s <= self.now_s):
            self.later.pop(due_s)()
