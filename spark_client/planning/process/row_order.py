"""RowOrder sorts the rows of a key, in batch: by ORDER BY or by time, otherwise by their position in the input."""

import dataclasses
from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, TimestampNTZType

from remote_udf.functions import FunctionSpec
from remote_udf.process_calls import OrderColumn, ProcessCall
from remote_udf.table_arguments import ArgumentTrait
from spark_client.base.identifiers import column_named, hidden
from spark_client.planning.key_columns import micros_without_zone
from spark_client.planning.process.inputs import ProcessInput

__all__ = ["RowOrder", "ordered_by_time"]


def ordered_by_time(spec: FunctionSpec, process: ProcessCall) -> ProcessCall:
    """The call, with an ORDER BY for tables that have none and whose rows the function expects in order of time."""
    assert spec.process is not None
    tables = [
        dataclasses.replace(table, order_by=(OrderColumn(table.time_column, False, False),))
        if argument.has(ArgumentTrait.ORDERED_BY_TIME) and not table.order_by
        else table
        for argument, table in zip(spec.process.tables, process.tables, strict=True)
    ]
    return dataclasses.replace(process, tables=tuple(tables))


class RowOrder:
    """The order of the rows of all tables of a call, which have the same columns for it."""

    def __init__(self, process: ProcessCall, inputs: Sequence[ProcessInput], main: Sequence[int]) -> None:
        """`main` has the positions of the tables that are not broadcast."""
        self._process, self._inputs, self._main = process, inputs, main

    def sorting(self) -> list[Column]:
        """What rows of a key are sorted by: the columns of `columns`, with their directions."""
        ordered = any(self._process.tables[index].order_by for index in self._main)
        order: list[Column] = []
        if ordered or (self._process.on_time and len(self._main) > 1):
            order.append(F.col(hidden("first")).asc_nulls_first())
            if len(self._main) > 1:
                # As on a stream. Without times, the rows of all tables are in the order of their positions.
                order.append(F.col(hidden("table")).asc())
        for index in self._main:
            for place, each in enumerate(self._process.tables[index].order_by[1:]):
                column = F.col(hidden(f"order_{index}_{place}"))
                order.append(column.desc_nulls_last() if each.descending else column.asc_nulls_first())
        return [*order, F.col(hidden("position")).asc_nulls_first()]

    def columns(self, index: int, names: Sequence[str]) -> list[Column]:
        """The sort columns of one table; those of other tables are null. `names` has its columns, quoted."""
        first = self._first(index)
        if any(each.order_by and each.order_by[0].nulls_last for each in self._process.tables):
            # All tables need the same type to be merged by time, even if only one of them has NULLS LAST.
            order = self._process.tables[index].order_by
            nulls = 2 if order and order[0].nulls_last else 0
            first = F.struct(F.when(first.isNull(), nulls).otherwise(1).alias("rank"), first.alias("value"))
        columns = [first.alias(hidden("first"))]
        for other in self._main:
            order = self._process.tables[other].order_by[1:]
            for place, each in enumerate(order):
                name = hidden(f"order_{other}_{place}")
                if other != index:
                    type_ = self._inputs[other].fields[each.column].dataType.simpleString()
                    columns.append(F.lit(None).cast(f"struct<missing:boolean,value:{type_}>").alias(name))
                    continue
                # A flag in front of the value places nulls where Spark's default order would not: in ascending order
                # false is first, in descending order true is first.
                column = F.col(names[each.column])
                flag = column.isNull() if each.nulls_last != each.descending else column.isNotNull()
                columns.append(F.struct(flag.alias("missing"), column.alias("value")).alias(name))
        return [*columns, F.monotonically_increasing_id().alias(hidden("position"))]

    def _first(self, index: int) -> Column:
        """The time by which rows of several tables are merged, in the type that all tables share.

        A cast between TIMESTAMP and TIMESTAMP_NTZ uses the time zone of the session, and changes the order of rows
        where clocks change. So tables that differ in type are merged by microseconds, as on streams.
        """
        fields = [each for each in map(self._first_field, self._main) if each is not None]
        types, own = {each.dataType for each in fields}, self._first_field(index)
        if own is None:
            return F.lit(None).cast(fields[0].dataType if len(types) == 1 else LongType())
        column = column_named(own.name)
        if len(types) == 1:
            return column
        return micros_without_zone(column) if isinstance(own.dataType, TimestampNTZType) else F.unix_micros(column)

    def _first_field(self, index: int) -> StructField | None:
        """The column by whose time a table is ordered; None if it has none."""
        table = self._process.tables[index]
        if not table.order_by and not self._process.on_time:
            return None
        return self._inputs[index].fields[table.order_by[0].column if table.order_by else table.time_column]
