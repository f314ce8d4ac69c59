"""Span: the operations of a trace span that both ends use, with or without tracing."""

from collections.abc import Iterable
from typing import Protocol

__all__ = ["NO_SPAN", "Attribute", "Headers", "NoSpan", "Span"]

Headers = Iterable[tuple[str, str | bytes]]
"""Metadata of gRPC, of which `traceparent` and `tracestate` (W3C) are used."""
Attribute = str | int | float | bool


class Span(Protocol):
    """A trace span. Its methods may be called from any thread and have no effect after `end`."""

    def event(self, name: str, **attributes: Attribute) -> None:
        """Record an event that happened now."""
        ...

    def set(self, **attributes: Attribute) -> None:
        """Set attributes of the span."""
        ...

    def child(self, name: str, **attributes: Attribute) -> "Span":
        """Start a child span."""
        ...

    def headers(self) -> list[tuple[str, str]]:
        """The headers with which the other end starts child spans of this one."""
        ...

    def make_current(self) -> None:
        """Make this the current span of OpenTelemetry in this thread or asyncio task."""
        ...

    def end(self, error: str = "") -> None:
        """End the span. With `error`, it failed for this reason. May be called twice."""
        ...


class NoSpan:
    """A span that records nothing."""

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


NO_SPAN: Span = NoSpan()
"""The span that is used without tracing."""
