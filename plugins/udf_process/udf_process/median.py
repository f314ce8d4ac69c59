"""A median over the rows before each row."""

import statistics
from collections.abc import Iterator
from typing import Annotated

import udf_server as udf
from udf_server import ArgumentTrait, ListView

__all__ = ["TrailingMedian"]


class TrailingMedian(udf.ProcessTableFunction):
    """Adds the median of `column` over the last `rows` rows of the key, including the current one; nulls are skipped.

    Pass the table ordered, by `order_by` or PARTITION BY ... ORDER BY.
    """

    name = "trailing_median"
    returns = "median double"

    def eval(
        self,
        ctx: udf.ProcessContext,
        recent: ListView[float],
        input: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE, ArgumentTrait.PASS_COLUMNS_THROUGH],
        column: str,
        rows: int = 5,
    ) -> Iterator[tuple[float | None]]:
        if rows < 1:
            raise ValueError(f"rows is {rows}: a median needs 1 row or more")
        if input[column] is not None:
            recent.append(float(input[column]))
            if len(recent) > rows:
                del recent[0]
        yield (statistics.median(recent) if recent else None,)
