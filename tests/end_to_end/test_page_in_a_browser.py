"""A page in a real browser: nothing on its console, also under a policy that refuses every request, and it prints."""

import shutil
import subprocess

import pytest
from small_runs import undisturbed

from fedmpi.command.report import with_classes_and_spectra
from fedmpi.pages import facts
from fedmpi.pages.page import page

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="no chromium: apt install chromium")]


def in_browser(*options: str) -> str:
    """What a headless browser without a network writes to its log."""
    quiet = ("--headless=new", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND")
    logging = ("--enable-logging=stderr", "--v=0")
    return subprocess.run(
        [str(BROWSER), *quiet, *logging, *options], capture_output=True, text=True, timeout=120
    ).stderr


@pytest.fixture
def text(tmp_path) -> str:
    """The page of a run of FedHM."""
    undisturbed(tmp_path, "method.name=fedhm")
    return page([with_classes_and_spectra(facts.read(tmp_path / "undisturbed"))])


@pytest.mark.parametrize("width", [1280, 400])
def test_a_page_in_a_browser(tmp_path, text, width):
    path, picture, paper = tmp_path / "page.html", tmp_path / "page.png", tmp_path / "page.pdf"
    assert "Singular values" in text and "Examples of each class" in text
    path.write_text(text)
    log = in_browser(f"--window-size={width},2000", f"--screenshot={picture}", path.as_uri())
    assert "CONSOLE" not in log, log
    assert picture.read_bytes().startswith(b"\x89PNG")
    in_browser(f"--print-to-pdf={paper}", path.as_uri())
    assert paper.read_bytes().startswith(b"%PDF")


def test_what_a_browser_refuses_is_on_its_console(tmp_path, text):
    """So the test above can fail."""
    path = tmp_path / "page.html"
    path.write_text(text.replace("<footer>", '<img src="https://example.org/x.png"><footer>'))
    assert "CONSOLE" in in_browser(f"--screenshot={tmp_path / 'page.png'}", path.as_uri())
