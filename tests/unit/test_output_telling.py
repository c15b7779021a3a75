"""Progress of a long step, in words."""

import io

import pytest

from fedmpi.report.telling import Telling


def test_progress_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain line at most every ten seconds: 1,000 of 4,000 in 10 s are 100/s, and 30 s to go."""
    seconds = iter([100.0, 105.0, 110.0, 119.0, 121.0])
    monkeypatch.setattr("fedmpi.report.telling.time.monotonic", lambda: next(seconds))
    stream = io.StringIO()
    with Telling("x.zip", stream=stream) as telling:
        for done in (0, 400, 1000, 1900, 2200):
            telling(done, 4000)
    assert stream.getvalue().splitlines() == [
        "x.zip  1,000 of 4,000  25 %  100/s  0:30 to go",
        "x.zip  2,200 of 4,000  55 %  105/s  0:17 to go",
    ]
    assert Telling("x").line(5, 0, 1.0) == "x  5  5/s" and Telling("x").line(0, 0, 0.0) == "x  0"


def test_the_rate_of_a_resumed_download_counts_what_came_now(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.5, 20.5])
    monkeypatch.setattr("fedmpi.report.telling.time.monotonic", lambda: next(seconds))
    stream = io.StringIO()
    telling = Telling("x", stream=stream)
    telling(3000, 4000)
    telling(3200, 4000)
    assert stream.getvalue() == "x  3,200 of 4,000  80 %  10/s  1:20 to go\n"
