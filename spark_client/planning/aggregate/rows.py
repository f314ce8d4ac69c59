"""GroupedRows: the input of a GROUP BY, with hidden columns for what it refers to, gathered and sorted if necessary."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_client.base.changelogs import kind_code
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import are_plain, hidden, identifiers_of, quoted
from spark_client.functions.arguments import column_of
from spark_client.planning.aggregate.query import AggregateQuery
from spark_client.planning.key_columns import is_direction, require_sorting, sorts
from spark_client.planning.scans import selected
from spark_client.planning.selections import named_all, selected_as

__all__ = ["GroupedRows"]


class GroupedRows:
    """The input of step (a)."""

    def __init__(self, query: AggregateQuery) -> None:
        self._query = query

    def frame(self) -> DataFrame:
        """The input of step (a): columns to which Spark's aggregates may refer, and hidden columns for all else."""
        extra: dict[str, str | Column] = dict(self._query.hidden)
        chained = self._query.chained
        order: list[str | Column] = []
        if self._query.kind is not None:
            extra[hidden("kind")] = kind_code(self._query.kind)
        for index, column in enumerate(self._query.order_by):
            if self._is_direction(column):
                order.append(column)
                continue
            # Computed before the shuffle: an expression on the position in the input would change after it.
            order.append(hidden(f"order_{index}"))
            extra[hidden(f"order_{index}")] = column_of(column)
        conditions = [column.alias(name) for name, column in self._query.conditions.items()]
        frame = selected(self._query.frame, "*", *conditions) if conditions else self._query.frame
        if not chained and self._query.sets is None:
            passed = {name: quoted(name) for name in self._passed_columns()}
            first = {name: extra[name] for name in self._query.keys} | {name: name for name in self._query.conditions}
            return selected_as(frame, passed | first | extra)
        # Select all columns of the frame first, because the order may refer to any of them. Spark prunes the rest.
        base = selected(frame, "*", *(column_of(column).alias(name) for name, column in extra.items()))
        if self._query.sets is not None:
            base = self._expanded(base)
        keys = self._query.group_keys
        if chained:
            for name, type_ in zip(self._query.key_names, self._types_of_keys(base), strict=False):
                require_sorting(type_, f"key {name!r}")
            placed = base.repartition(*keys) if keys else base.repartition(1)
            base = placed.sortWithinPartitions(*keys, *order) if keys or order else placed
        # Rows that are not sorted here are sorted by these columns after they were gathered.
        sorted_by = (name for name in order if isinstance(name, str)) if chained else ()
        done = {*self._query.keys, *sorted_by}
        rest = [*self._query.conditions, *(name for name in extra if name not in done)]
        return selected(base, *map(quoted, self._passed_columns()), *keys, *rest)

    def unchanged(self) -> DataFrame | None:
        """The frame itself, if step (a) takes each of its columns unchanged and needs no other; otherwise None.

        The query then knows the columns by `own_names`. A selection is a plan that Spark analyzes for nothing.
        """
        query = self._query
        if query.chained or query.passes_rows or query.sets is not None or query.conditions or query.kind is not None:
            return None
        own = named_all(query.frame, query.hidden)
        if own is None or not are_plain(query.frame.columns):
            return None
        query.own_names = own
        return query.frame

    def _types_of_keys(self, base: DataFrame) -> list[T.DataType]:
        types = {field.name: field.dataType for field in base.schema.fields}
        return [types[self._query.own_names.get(key, key)] for key in self._query.group_keys]

    def sorts_keys(self, base: DataFrame) -> bool:
        """Whether Spark can sort by the keys."""
        return all(sorts(type_) for type_ in self._types_of_keys(base))

    def _is_direction(self, column: Column | str) -> bool:
        """Whether the column is only a sort direction, such as `F.col("x").desc()`. Raises PlanError on a stream."""
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
        """The frame's own columns, to which Spark's aggregates may refer."""
        if not self._query.builtins:
            return []
        identifiers, names = identifiers_of(self._query.frame), self._query.frame.columns
        twice = identifiers.repeated(names)
        return [name for name in names if identifiers.key(name) not in twice]

    def _expanded(self, base: DataFrame) -> DataFrame:
        """Repeat each row for every grouping set, with null in keys outside of the set (Spark's Expand)."""
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
