"""Describes tables as a query would pass them, for tests."""

from collections.abc import Sequence

import pyarrow as pa

from remote_udf.process_planning import TableGiven
from remote_udf.table_arguments import ChangelogMode
from udf_server.base.annotations import type_given

__all__ = ["table"]


def table(
    columns: str | pa.Schema, *, partition_by: str | Sequence[str] | None = None, order_by: str | Sequence[str] = (),
    changelog_mode: ChangelogMode | None = None,
) -> TableGiven:  # fmt: skip
    """Describe a table as a query would pass it.

    Args:
        columns: The columns, as DDL or as an Arrow schema.
        partition_by: Names of the key's columns. None means no PARTITION BY.
        order_by: Names of columns, each optionally followed by " DESC" and " NULLS FIRST" or " NULLS LAST".
        changelog_mode: The kinds of change in the table. By default there are only inserts.
    """
    if isinstance(columns, str):
        struct = type_given(f"struct<{columns}>", "table")
        assert struct is not None
        columns = pa.schema(list(struct))
    keys = [partition_by] if isinstance(partition_by, str) else partition_by
    order = [order_by] if isinstance(order_by, str) else list(order_by)
    return TableGiven(columns, keys, [_ordered(each) for each in order], changelog_mode or ChangelogMode())


def _ordered(text: str) -> tuple[str, bool, bool]:
    name, *words = text.split()
    directions = " ".join(words).upper()
    descending = directions.startswith("DESC")
    return name, descending, directions.endswith("LAST") or (descending and not directions.endswith("FIRST"))
