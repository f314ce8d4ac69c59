"""Span: what both ends do with one, whether or not anything is traced."""

from collections.abc import Iterable
from typing import Protocol

__all__ = ["NO_SPAN", "Attribute", "Headers", "Span"]

Headers = Iterable[tuple[str, str | bytes]]
"""Metadata of gRPC's; `traceparent` and `tracestate` (W3C) are what counts."""
Attribute = str | int | float | bool


class Span(Protocol):
    """What both ends do with a span. From any thread; nothing happens after `end`."""

    def event(self, name: str, **attributes: Attribute) -> None:
        """Something happened now."""
        ...

    def set(self, **attributes: Attribute) -> None:
        """Attributes of the whole."""
        ...

    def child(self, name: str, **attributes: Attribute) -> "Span":
        """A span below this one."""
        ...

    def headers(self) -> list[tuple[str, str]]:
        """What the other end needs to go on below this span."""
        ...

    def make_current(self) -> None:
        """In this thread, or asyncio task, code that asks OpenTelemetry for the current span gets this one."""
        ...

    def end(self, error: str = "") -> None:
        """It is over; with `error` it failed for this reason. Safe to call twice."""
        ...


class _NoSpan:
    def event(self, name: str, **attributes: Attribute) -> None:
        pass

    def set(self, **attributes: Attribute) -> None:
        pass

    def child(self, name: str, **attributes: Attribute) -> Span:
        return self

    def headers(self) -> list[tuple[str, str]]:
        return []

    def make_current(self) -> None:
        pass

    def end(self, error: str = "") -> None:
        pass


NO_SPAN: Span = _NoSpan()
"""What there is where nothing is traced."""
