"""A clock for tests: it stands still until a test moves it."""


class HandClock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s
