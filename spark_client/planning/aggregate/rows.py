"""The rows of a GROUP BY: hidden columns for everything it names, brought together and sorted where it must be."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_client.base.changelogs import kind_code
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import hidden, identifiers_of, quoted
from spark_client.functions.scalar import column_of
from spark_client.planning.aggregate.query import AggregateQuery
from spark_client.planning.key_columns import require_sorting, sorts
from spark_client.planning.sort_directions import is_direction

__all__ = ["Rows"]


class Rows:
    """What step (a) gets."""

    def __init__(self, query: AggregateQuery) -> None:
        self._query = query

    def frame(self) -> DataFrame:
        """The rows step (a) gets: what Spark's aggregates may name, and hidden columns with everything else."""
        extra = dict(self._query.hidden)
        chained = self._query.chained
        order: list[str | Column] = []
        if self._query.kind is not None:
            extra[hidden("kind")] = kind_code(self._query.kind)
        for index, column in enumerate(self._ordering(chained)):
            if self._is_direction(column):
                order.append(column)
                continue
            # Here and not in the sort: what a row's place in the input gives would be that after the shuffle.
            order.append(hidden(f"order_{index}"))
            extra[hidden(f"order_{index}")] = column_of(column)
        # With all of the frame's columns at first: the order may name any of them. Spark prunes the rest.
        conditions = [column.alias(name) for name, column in self._query.conditions.items()]
        frame = self._query.frame.select("*", *conditions) if conditions else self._query.frame
        base = frame.select("*", *(column.alias(name) for name, column in extra.items()))
        if self._query.sets is not None:
            base = self._expanded(base)
        keys = self._query.group_keys
        if chained:
            for name, type_ in zip(self._query.key_names, self._types_of_keys(base), strict=False):
                require_sorting(type_, f"key {name!r}")
            placed = base.repartition(*keys) if keys else base.repartition(1)
            base = placed.sortWithinPartitions(*keys, *order) if keys or order else placed
        # Rows that are not sorted here are sorted where they have been gathered, by these columns.
        sorted_by = (name for name in order if isinstance(name, str)) if chained else ()
        done = {*self._query.keys, *sorted_by}
        own = [*self._query.conditions, *(name for name in extra if name not in done)]
        return base.select(*self._passed_columns(), *keys, *own)

    def _types_of_keys(self, base: DataFrame) -> list[T.DataType]:
        keys = self._query.group_keys
        return [field.dataType for field in base.select(*keys).schema.fields] if keys else []

    def sorts_keys(self, base: DataFrame) -> bool:
        """Whether Spark can sort by the keys."""
        return all(sorts(type_) for type_ in self._types_of_keys(base))

    def _ordering(self, chained: bool) -> Sequence[Column | str]:
        """What the rows of a key are ordered by: what the caller says; the input's order for a changelog."""
        if self._query.order_by or self._query.kind is None or not chained:
            return self._query.order_by
        # The order of the input, as far as a DataFrame has one: by partition, then by position.
        return [F.monotonically_increasing_id()]

    def _is_direction(self, column: Column | str) -> bool:
        """Whether it can be sorted by and not selected, such as `F.col("x").desc()`. Raises PlanError on a stream."""
        found = is_direction(self._query.frame, column)
        if found and self._query.frame.isStreaming:
            raise PlanError(f"on a stream order_by takes columns, from the smallest up, not {column}")
        if found and self._query.kind is not None and self._query.builtins:
            raise PlanError(
                "on a changelog, beside Spark's own aggregates, order_by takes columns, from the smallest up, "
                f"not {column}"
            )
        return found

    def _passed_columns(self) -> list[str]:
        """The frame's own columns that Spark's aggregates may name."""
        if not self._query.builtins:
            return []
        identifiers, names = identifiers_of(self._query.frame), self._query.frame.columns
        twice = identifiers.repeated(names)
        return [quoted(name) for name in names if identifiers.key(name) not in twice]

    def _expanded(self, base: DataFrame) -> DataFrame:
        """Every row once per grouping set, with null for the keys that are not in it (Spark's Expand)."""
        assert self._query.sets is not None
        types = {field.name: field.dataType for field in base.schema.fields if field.name in self._query.keys}
        choices = []
        for number, chosen in enumerate(self._query.sets):
            parts = [
                (F.col(key) if index in chosen else F.lit(None).cast(types[key])).alias(f"{key}_in_set")
                for index, key in enumerate(self._query.keys)
            ]
            choices.append(F.struct(*parts, F.lit(number).alias(hidden("grouping_id"))))
        exploded = base.select("*", F.explode(F.array(*choices)).alias(hidden("set")))
        return exploded.select("*", *(F.col(hidden(f"set.{name}")).alias(name) for name in self._query.group_keys))
