"""Cuts plain rows into bundles, as a client does."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from remote_udf.row_kinds import RowKind
from udf_server.aggregate.segments import BundledKeySegment

__all__ = ["Rows", "bundles_of"]

Rows = Sequence[Any]
"""Each row is a tuple of arguments, or the argument if there is only one."""


def bundles_of(
    rows: Rows, keys: Sequence[Hashable] | None, row_kinds: Sequence[RowKind | str] | None, size: int | None
) -> Iterator[dict[Hashable, BundledKeySegment]]:
    """Yield the segments by key, for each `size` rows of the input; rows of a key keep their order."""
    for name, column in (("keys", keys), ("row_kinds", row_kinds)):
        if column is not None and len(column) != len(rows):
            raise ValueError(f"{len(rows)} rows, but {len(column)} {name}")
    step = size or max(len(rows), 1)
    for first in range(0, len(rows), step):
        bundle: dict[Hashable, BundledKeySegment] = {}
        for index in range(first, min(first + step, len(rows))):
            key = () if keys is None else keys[index]
            if key not in bundle:
                bundle[key] = BundledKeySegment((), [], row_kinds=None if row_kinds is None else [])
            segment, row = bundle[key], rows[index]
            segment.rows.append(row if isinstance(row, tuple) else (row,))  # type: ignore[attr-defined]
            if row_kinds is not None:
                segment.row_kinds.append(RowKind(row_kinds[index]))  # type: ignore[union-attr]
        yield bundle
