"""GroupedRows: the input of a GROUP BY, with hidden columns for what it refers to, gathered and sorted if necessary."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_client.base.changelogs import kind_code
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import are_plain, hidden, identifiers_of, quoted
from spark_client.base.settings import reads_stream
from spark_client.functions.arguments import column_of
from spark_client.planning.aggregate.query import AggregateQuery
from spark_client.planning.key_columns import is_direction, require_sorting, sorts
from spark_client.planning.scans import named_all, selected, selected_as

__all__ = ["GroupedRows"]


class GroupedRows:
    """The input of step (a)."""

    def __init__(self, query: AggregateQuery) -> None:
        self._query = query
        self._order: list[str | Column] = []
        self._rest: list[str] | None = None
        """The columns that step (a) needs beside the keys, if the frame has others as well."""

    def frame(self) -> DataFrame:
        """The input of step (a): columns to which Spark's aggregates may refer, and hidden columns for all else."""
        extra: dict[str, str | Column] = dict(self._query.hidden)
        if self._query.kind is not None:
            extra[hidden("kind")] = kind_code(self._query.kind)
        for index, column in enumerate(self._query.order_by):
            if self._is_direction(column):
                self._order.append(column)
                continue
            # Computed before the shuffle: an expression on the position in the input would change after it.
            self._order.append(hidden(f"order_{index}"))
            extra[hidden(f"order_{index}")] = column_of(column)
        conditions = [column.alias(name) for name, column in self._query.conditions.items()]
        frame = selected(self._query.frame, "*", *conditions) if conditions else self._query.frame
        ordered = self._query.chained and self._order
        if not ordered and self._query.sets is None:
            passed = {name: quoted(name) for name in self._passed_columns()}
            first = {name: extra[name] for name in self._query.keys} | {name: name for name in self._query.conditions}
            return selected_as(frame, passed | first | extra)
        # Select all columns of the frame first, because the order may refer to any of them. Spark prunes the rest.
        base = selected(frame, "*", *(column_of(column).alias(name) for name, column in extra.items()))
        # Rows that are not sorted here are sorted by these columns after they were gathered.
        sorted_by = (name for name in self._order if isinstance(name, str)) if self._query.chained else ()
        done = {*self._query.keys, *sorted_by}
        self._rest = [*self._query.conditions, *(name for name in extra if name not in done)]
        if self._query.sets is None:
            return base
        base = self._expanded(base)
        return base if self._query.chained else self._needed(base)

    def placed(self, base: DataFrame, *, one_task: bool = False, sort: bool = True) -> DataFrame:
        """The rows of a frame with all rows of a key in one task, sorted by key and in the order of the query.

        Without `sort`, rows in no order are not sorted by key either.
        """
        for name, type_ in zip(self._query.key_names, self._types_of_keys(base), strict=False):
            require_sorting(type_, f"key {name!r}")
        is_sorted = sort or bool(self._order)
        # `F.col` takes ten requests to the JVM more.
        used = self._query.group_keys if is_sorted or not one_task else ()
        keys = [base[self._query.own_names.get(key, key)] for key in used]
        placed = base.coalesce(1) if one_task else base.repartition(*keys) if keys else base.repartition(1)
        if is_sorted and (keys or self._order):
            placed = placed.sortWithinPartitions(*keys, *self._order)
        return placed if self._rest is None else self._needed(placed)

    def with_one_more(self, placed: DataFrame) -> DataFrame:
        """The rows and one that no call receives: without keys there is a group also if there are no rows.

        Spark runs no task for a frame that it knows to be empty.
        """
        present = hidden("present")
        for remote in self._query.remotes:
            remote.condition = remote.condition or present
        more = placed.sparkSession.range(0, 1, 1, 1).selectExpr(f"false AS {present}")
        rows = placed.selectExpr("*", f"true AS {present}")
        return rows.unionByName(more, allowMissingColumns=True).coalesce(1)

    def _needed(self, base: DataFrame) -> DataFrame:
        passed = map(quoted, self._passed_columns())
        return selected(base, *passed, *self._query.group_keys, *(self._rest or ()))

    def unchanged(self) -> DataFrame | None:
        """The frame itself, if step (a) takes each of its columns unchanged and needs no other; otherwise None.

        The query then knows the columns by `own_names`. A selection is a plan that Spark analyzes for nothing.
        """
        query = self._query
        if query.order_by or query.passes_rows or query.sets is not None or query.conditions or query.kind is not None:
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
        if found and reads_stream(self._query.frame):
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
