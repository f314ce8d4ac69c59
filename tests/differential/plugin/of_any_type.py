"""Aggregates of any type: count, min_by, collect_list, first, last, max."""

import udf_server as udf
from tests.differential.plugin.suffixes import SUFFIXES

LISTED = ("bigint", "string", "timestamp", "timestamp_ntz", "date", "time(6)")
COMPARED = ("bigint", "string", "timestamp", "date", "decimal(10,2)", "interval day to second", "time(6)")


def _count(type_: str, suffix: str) -> type[udf.AggregateFunction]:
    class Count(udf.AggregateFunction):
        """count: the accumulator is a number, which cannot be changed in place."""

        name, nulls = f"count_{suffix}", "skip"
        parameters, accumulator, returns = f"x {type_}", "bigint", "bigint"

        def create_accumulator(self):
            return 0

        def accumulate(self, accumulator, x):
            return accumulator + 1

        def retract(self, accumulator, x):
            return accumulator - 1

        def merge(self, accumulator, others):
            return accumulator + sum(others)

        def get_value(self, accumulator):
            return accumulator

    return Count


def _least_by(type_: str, suffix: str) -> type[udf.AggregateFunction]:
    class LeastBy(udf.BundledAggregateFunction):
        """min_by: rows whose order is null are ignored."""

        name = f"min_by_{suffix}"
        parameters, returns = f"x {type_}, y bigint", type_
        accumulator = f"array<struct<x:{type_},y:bigint>>"

        def supports_merging(self):
            return True

        def bundled_accumulate_retract(self, bundle):
            applied = []
            for segment in bundle:
                known = [(each["x"], each["y"]) for accumulator in segment.accumulators for each in accumulator]
                best = [min(known, key=lambda pair: pair[1])] if known else []
                values = [best[0][0] if best else None]
                for x, y in segment.rows:
                    if y is not None and (not best or y < best[0][1]):
                        best = [(x, y)]
                    values.append(best[0][0] if best else None)
                accumulator = [{"x": x, "y": y} for x, y in best]
                applied.append(udf.BundledKeySegmentApplied(accumulator, values[0], values[-1], values[1:]))
            return applied

    return LeastBy


def _listed(type_: str, suffix: str) -> type[udf.AggregateFunction]:
    class Listed(udf.AggregateFunction):
        """collect_list in its simplest form: the accumulator is the value."""

        name, nulls = f"list_{suffix}", "skip"
        parameters, accumulator, returns = f"x {type_}", f"array<{type_}>", f"array<{type_}>"

        def create_accumulator(self):
            return []

        def accumulate(self, accumulator, x):
            accumulator.append(x)

        def retract(self, accumulator, x):
            accumulator.remove(x)

        def merge(self, accumulator, others):
            for other in others:
                accumulator.extend(other)

        def get_value(self, accumulator):
            return accumulator

    return Listed


def _end(type_: str, suffix: str, last: bool) -> type[udf.AggregateFunction]:
    class End(udf.AggregateFunction):
        """first or last, nulls included, in the order of the rows."""

        name = f"{'last' if last else 'first'}_{suffix}"
        parameters, accumulator, returns = f"x {type_}", f"array<{type_}>", type_

        def create_accumulator(self):
            return []

        def accumulate(self, accumulator, x):
            if last or not accumulator:
                accumulator[:] = [x]

        def get_value(self, accumulator):
            return accumulator[0] if accumulator else None

    return End


def _greatest(type_: str, suffix: str) -> type[udf.AggregateFunction]:
    class Greatest(udf.AggregateFunction):
        """max: the methods return a new accumulator."""

        name, nulls = f"max_{suffix}", "skip"
        parameters, accumulator, returns = f"x {type_}", f"array<{type_}>", type_

        def create_accumulator(self):
            return []

        def accumulate(self, accumulator, x):
            return [max([*accumulator, x])]

        def merge(self, accumulator, others):
            every = [x for each in (accumulator, *others) for x in each]
            return [max(every)] if every else []

        def get_value(self, accumulator):
            return accumulator[0] if accumulator else None

    return Greatest


FUNCTIONS = (
    *(_count(type_, suffix) for type_, suffix in SUFFIXES.items()),
    *(_least_by(type_, SUFFIXES[type_]) for type_ in SUFFIXES),
    *(_listed(type_, SUFFIXES[type_]) for type_ in LISTED),
    *(_end(type_, SUFFIXES[type_], last) for type_ in SUFFIXES for last in (False, True)),
    *(_greatest(type_, SUFFIXES[type_]) for type_ in COMPARED),
)
