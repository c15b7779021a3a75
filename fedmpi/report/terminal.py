"""Lines of at most 80 columns, for messages and logs."""

import contextlib
import sys
import textwrap

COLUMNS = 80


def wrapped(*texts: str, hang: int = 2) -> list[str]:
    """Returns the texts as lines of at most 80 columns; a continuation line is indented by `hang` more columns.

    A word that is too long, such as a path, gets a line of its own and is not cut.
    """
    wrapper = textwrap.TextWrapper(COLUMNS, break_long_words=False, break_on_hyphens=False)
    lines: list[str] = []
    for text in texts:
        wrapper.subsequent_indent = " " * (len(text) - len(text.lstrip()) + hang)
        lines += wrapper.wrap(text)
    return lines


def warn(text: str) -> None:
    """Prints `warning: ` and the text to stderr, whatever `output.progress` is; nothing where stderr is gone."""
    with contextlib.suppress(OSError, ValueError):
        print(*wrapped(f"warning: {text}"), sep="\n", file=sys.stderr, flush=True)


def filled(text: str) -> str:
    """Returns a text, such as a docstring, with its paragraphs in lines of at most 80 columns; the lines of one with
    indented lines, such as a table, stay apart.
    """
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        is_table = any(line.startswith(" ") for line in paragraph.splitlines())
        parts = paragraph.splitlines() if is_table else [" ".join(paragraph.split())]
        lines += [*wrapped(*parts, hang=4 if is_table else 0), ""]
    return "\n".join(lines[:-1])


def folded(text: str) -> str:
    """Returns `to continue: COMMAND`; of a text that is longer than 80 columns the command stands on its own line."""
    prose, colon, command = text.partition(": ")
    if len(text) <= COLUMNS or not colon:
        return text
    return "\n".join([*wrapped(f"{prose}:"), f"  {command}"])
