"""Displays of a line that changes: redrawn on a terminal and in a notebook, line after line in a log."""

import os
import shutil
from typing import Any, Protocol, TextIO

from spark_client.base.ipython import ipython_shell

__all__ = ["Display", "display_for"]


class Display(Protocol):
    """Shows a line in place of the one before."""

    def show(self, line: str) -> None:
        """Show the line."""
        ...

    def end(self) -> None:
        """Leave the last line as it is."""
        ...


class _Lines:
    def __init__(self, out: TextIO) -> None:
        self._out = out

    def show(self, line: str) -> None:
        self._out.write(f"{line}\n")
        self._out.flush()

    def end(self) -> None:
        pass


class _Terminal:
    def __init__(self, out: TextIO) -> None:
        self._out = out

    def show(self, line: str) -> None:
        # A longer line would wrap, and only its last part would be redrawn.
        shown = line[: max(_columns(self._out) - 1, 1)]
        self._out.write(f"\r\x1b[K{shown}")  # to the first column, and clear to the end
        self._out.flush()

    def end(self) -> None:
        self._out.write("\n")
        self._out.flush()


def _columns(out: TextIO) -> int:
    try:
        return os.get_terminal_size(out.fileno()).columns or shutil.get_terminal_size().columns
    except (OSError, ValueError):
        return shutil.get_terminal_size().columns


class _Notebook:
    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None

    def show(self, line: str) -> None:
        if self._handle is None:
            self._handle = self._display({"text/plain": line}, raw=True, display_id=True)
        else:
            self._handle.update({"text/plain": line}, raw=True)

    def end(self) -> None:
        pass


def display_for(out: TextIO) -> Display:
    """The display for a notebook, a terminal, or anything else that `out` is."""
    if getattr(ipython_shell(), "kernel", None) is not None:
        from IPython.display import display  # noqa: PLC0415 - IPython runs already

        return _Notebook(display)
    return _Terminal(out) if out.isatty() else _Lines(out)
