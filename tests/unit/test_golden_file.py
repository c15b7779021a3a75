"""The fixture `told`: what a test is told is compared with its section of a golden file."""

from pathlib import Path

import golden_file
import pytest
from golden_file import Told

from fedmpi.errors import ConfigError

Failed = pytest.fail.Exception


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Holds the test `test_it`, and where golden files go."""
    monkeypatch.setattr(golden_file, "GOLDEN", tmp_path / "golden")
    monkeypatch.setattr(golden_file, "ROOT", Path("/project"))
    return tmp_path


def compare(folder: Path, *texts: str, test: str = "test_it") -> None:
    told = Told(folder / "unit" / "test_it.py", test, folder / "test_it0")
    for text in texts:
        told(text)
    told.compare()


def test_what_is_not_there_is_written_and_fails_once(folder: Path) -> None:
    texts = (f"{folder}/test_it0/a.yaml: in use by pid 17", "two\nlines\n", "/project/a.py:12")
    with pytest.raises(Failed):
        compare(folder, *texts)
    text = (folder / "golden" / "told" / "unit" / "test_it.txt").read_text()
    assert text == "== test_it\nTMP/a.yaml: in use by pid ...\ntwo\n    lines\nHERE/a.py:...\n\n"
    compare(folder, *texts)


@pytest.mark.parametrize("texts", [("one",), ("one", "2"), ("two", "one"), ("one", "two", "three"), ()])
def test_another_text_or_number_of_texts_is_a_failure(folder: Path, texts: tuple[str, ...]) -> None:
    with pytest.raises(Failed):
        compare(folder, "one", "two")
    with pytest.raises(Failed):
        compare(folder, *texts)


def test_parameters_may_share_a_section(folder: Path) -> None:
    for test in ("test_it", "test_it[b]"):
        path = folder / "golden" / "told" / "unit" / "test_it.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a") as file:
            file.write(f"== {test}\ntext of {test}\n\n")
    compare(folder, "text of test_it", test="test_it[a]")
    compare(folder, "text of test_it[b]", test="test_it[b]")
    with pytest.raises(Failed):
        compare(folder, "text of test_it", test="test_it[b]")


def test_an_error_is_told_as_its_user_sees_it(folder: Path) -> None:
    told = Told(folder / "unit" / "test_it.py", "test_it", folder)
    with told.by(ConfigError, "seven") as caught:
        raise ConfigError("a.yaml", "is seven")
    assert caught.value.exit_code == 2
    with pytest.raises(Failed):
        told.compare()
    assert "a.yaml: is ...\n" in told.path.read_text()
