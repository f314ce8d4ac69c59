"""The function whose code the current thread runs."""

import threading

__all__ = ["running_function", "runs"]

_thread = threading.local()


def runs(key: str) -> None:
    """Note that this thread runs the code of one function, `name@version`, from now on."""
    name, _, version = key.partition("@")
    _thread.function = (name, version)


def running_function() -> tuple[str, str]:
    """Name and version of the function whose loop or thread this is; empty texts in any other thread."""
    found: tuple[str, str] = getattr(_thread, "function", ("", ""))
    return found
