"""Compares what a checkpoint's state was written for with what a query expects."""

__all__ = ["differs"]


def differs(what: str, found: object, expected: object) -> str | None:
    """The difference in words; None if there is none."""
    if found == expected:
        return None
    return f"{what}: found {_shown(found)} in the checkpoint, expected {_shown(expected)}"


def _shown(value: object) -> str:
    return str(value) if value is not None and value not in ({}, []) else "nothing"
