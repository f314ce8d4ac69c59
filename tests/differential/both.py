"""Both: a text in two versions, for a query with remote functions and for the same query with Spark's own."""

import dataclasses
from collections.abc import Iterable

__all__ = ["Both", "both", "joined"]


@dataclasses.dataclass(frozen=True)
class Both:
    """A part of a query, for `remote` and for Spark."""

    ours: str
    sparks: str


def both(template: str, *parts: "Both | str") -> Both:
    """The template with its `{}` filled in, for both."""
    ours = [part.ours if isinstance(part, Both) else part for part in parts]
    sparks = [part.sparks if isinstance(part, Both) else part for part in parts]
    return Both(template.format(*ours), template.format(*sparks))


def joined(separator: str, parts: Iterable["Both | str"]) -> Both:
    """All parts, with the separator between them."""
    every = [both("{}", part) for part in parts]
    return Both(separator.join(part.ours for part in every), separator.join(part.sparks for part in every))
