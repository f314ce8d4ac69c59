"""One text for two readers: a query with remote functions, and the same with Spark's own."""

import dataclasses
from collections.abc import Iterable

__all__ = ["Both", "both", "joined"]


@dataclasses.dataclass(frozen=True)
class Both:
    """A piece of a query as it is for `remote` and as it is for Spark."""

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
