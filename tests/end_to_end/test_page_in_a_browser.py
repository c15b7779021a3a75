"""A page in a real browser: nothing on its console, also under a policy that refuses every request; nothing of it is
cut, on a desk or on a phone."""

import html
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from fast import fast
from small_runs import undisturbed

from fedmpi.results.page import whole_page
from fedmpi.results.run import Run

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
# How far the page is wider than the window, and texts of charts that reach out of their chart.
LOOK = """<script>
const cut = [...document.querySelectorAll('svg text')].filter(text => {
  const own = text.getBoundingClientRect(), chart = text.closest('svg').getBoundingClientRect();
  return own.left < chart.left || own.right > chart.right || own.top < chart.top || own.bottom > chart.bottom;
}).map(text => text.textContent);
const {scrollWidth, clientWidth} = document.documentElement;
parent.document.title = JSON.stringify({window: window.innerWidth, wider: scrollWidth - clientWidth, cut: cut});
</script></body>"""


@pytest.fixture(scope="module")
def browser() -> str:
    if BROWSER is None and os.environ.get("FEDMPI_NEEDS_BROWSER"):
        pytest.fail("FEDMPI_NEEDS_BROWSER is set, and there is no chromium")
    return BROWSER or pytest.skip("no chromium: bash jobs/install_for_tests.sh")


def shown(browser: str, folder: Path, text: str, *options: str) -> tuple[str, str]:
    """What a headless browser without a network answers and writes to its log. Its own files are in a folder with a
    short name: it ends where the path of its socket is longer than the kernel takes."""
    path = folder / "page.html"
    path.write_text(text)
    with tempfile.TemporaryDirectory() as place:
        quiet = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
        alone = ("--host-resolver-rules=MAP * ~NOTFOUND", "--disable-breakpad", f"--user-data-dir={place}/browser")
        words = [browser, *quiet, *alone, "--enable-logging=stderr", "--v=0", *options, path.as_uri()]
        own = os.environ | {"HOME": place, "TMPDIR": place}
        done = subprocess.run(words, capture_output=True, text=True, timeout=600, env=own, check=True)
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a run of FedHM."""
    folder = tmp_path_factory.mktemp("run")
    undisturbed(folder, "method.name=fedhm")
    run = Run(folder / "undisturbed")
    return whole_page(run)


def looked_at(browser: str, folder: Path, text: str, width: int) -> dict[str, object]:
    """What LOOK finds in a frame of this width: the browser's own window has at least 500 pixels."""
    inner = html.escape(POLICY.sub("", text).replace("</body>", LOOK))
    frame = f'<!doctype html><iframe srcdoc="{inner}" style="width: {width}px; height: 2000px; border: 0"></iframe>'
    answer, _ = shown(browser, folder, frame, "--window-size=1400,2100", "--dump-dom")
    return json.loads(re.search("<title>(.*?)</title>", answer)[1])


@pytest.mark.parametrize("width", fast(of=[390, 1280], slow=[390]))
def test_nothing_is_cut(tmp_path: Path, browser: str, text: str, width: int) -> None:
    assert "Examples of each" in text
    assert looked_at(browser, tmp_path, text, width) == {"window": width, "wider": 0, "cut": []}


def test_the_console_stays_empty(tmp_path: Path, browser: str, text: str) -> None:
    picture = tmp_path / "page.png"
    _, log = shown(browser, tmp_path, text, f"--screenshot={picture}")
    assert "CONSOLE" not in log, log
    assert picture.read_bytes().startswith(b"\x89PNG")
