"""rich's console, with two changes: a reader that went away is an error for us to handle, not an exit; and the cursor
always stays visible, because a process that is killed cannot show it again.
"""

from __future__ import annotations

from typing import NoReturn, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text


class PlainConsole(Console):
    """A console that prints text as it is: no markup, no colours of rich's own choice."""

    def __init__(self, stream: TextIO, *, columns: int, is_terminal: bool) -> None:
        super().__init__(
            file=stream, width=columns, height=25, force_terminal=is_terminal, highlight=False, markup=False
        )

    def on_broken_pipe(self) -> NoReturn:
        """rich would end the process with exit code 1."""
        raise BrokenPipeError("nobody reads the output any more")

    def show_cursor(self, show: bool = True) -> bool:
        """Changes nothing; rich would hide the cursor while a live line is shown."""
        return False


def live_line(stream: TextIO, columns: int) -> Live:
    """One line that `Live.update(..., refresh=True)` updates, gone in the end; auto_refresh would start a thread."""
    console = PlainConsole(stream, columns=columns, is_terminal=True)
    return Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False)


def one_line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")
