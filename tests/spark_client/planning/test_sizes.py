"""What is read from Spark's cost plan, without Spark."""

import pytest

from spark_client.planning.aggregate.sizes import bound_in

COUNTED = """\
InMemoryRelation [k#4L, v#5], StorageLevel(disk, memory, deserialized, 1 replicas), \
Statistics(sizeInBytes=312.5 KiB, rowCount=2.00E+4)
   +- *(1) Project [(id#3L % 100) AS k#4L, rand(1) AS v#5]
      +- *(1) {scan}
"""
RANGE = "Range (0, 20000, step=1, splits=2)"
SMALL = COUNTED.format(scan=RANGE)


def bound(plan, physical="== Physical Plan ==\n*(1) Any"):
    return bound_in(f"== Optimized Logical Plan ==\n{plan}\n{physical}")


def above(node, *plans):
    """The plan of a node over others."""
    lines = [f"{node}, Statistics(sizeInBytes=1.0 B)"]
    for number, plan in enumerate(plans, 1):
        first, *rest = plan.splitlines()
        mark = "+" if number == len(plans) else ":"
        lines += [f"{mark}- {first}", *(f"{' ' if mark == '+' else ':'}  {line}" for line in rest)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("plan", "rows", "narrow"),
    [
        (SMALL, 20_000, True),
        (above("Filter (v#5 > 0.5)", SMALL), 20_000, True),
        (above("Union false, false", SMALL, above("Project [k#4L]", SMALL)), 40_000, True),
        (above("Aggregate [k#4L], [k#4L]", SMALL), 20_000, False),
        (above("Repartition 1, false", SMALL), 20_000, True),
        (above("Repartition 8, true", SMALL), 20_000, False),
        (above("Sort [k#4L ASC NULLS FIRST], true", SMALL), 20_000, False),
        ("LocalRelation [k#1], Statistics(sizeInBytes=40.0 B, rowCount=2)", 2, True),
        ("LocalRelation <empty>, [k#1], Statistics(sizeInBytes=1.0 B, rowCount=0)", 0, True),
        (above("Project [1 AS k#1]", "OneRowRelation, Statistics(sizeInBytes=1.0 B)"), 1, True),
        (COUNTED.format(scan="FileScan parquet [k#72L] Batched: true, Format: Parquet"), 20_000, True),
        (COUNTED.format(scan="Scan ExistingRDD[k#72L]"), 20_000, True),
    ],
)
def test_sources_that_spark_has_counted_bound_what_makes_no_more_rows(plan, rows, narrow):
    found = bound(plan)
    assert (found.rows, found.narrow, found.small) == (rows, narrow, True)


@pytest.mark.parametrize(
    "plan",
    [
        above("Join Inner, (k#1 = k#2)", SMALL, SMALL),
        above("Join Cross", SMALL, SMALL),
        above("Generate explode(sequence(1, 100000000, 1)), false, [x#9]", SMALL),
        above("Expand [[k#1], [null]], [k#1]", SMALL),
        above("MapInArrow operate(k#1), [k#2], false", SMALL),
        above("ArrowEvalPython [f(k#1)#2], [pythonUDF0#3], 251", SMALL),
        above("Filter (v#5 > 0.5)", "Relation [k#1] parquet, Statistics(sizeInBytes=4.0 MiB)"),
        "Relation spark_catalog.default.t[k#1] parquet, Statistics(sizeInBytes=4.0 MiB, rowCount=10)",
        "LogicalRDD [k#76, v#77], false, Statistics(sizeInBytes=8.0 EiB)",
        COUNTED.format(scan="FileScan parquet spark_catalog.default.t[k#72L] Batched: true"),
        COUNTED.format(scan="HiveTableScan [k#1], HiveTableRelation [`default`.`t`]"),
        COUNTED.format(scan="BatchScan python [k#1]"),
        SMALL.replace("312.5 KiB", "312.5 MiB"),
        SMALL.replace("Statistics(", "Numbers("),
        above("Filter (v#5 = a\ntext)", SMALL),
        "",
    ],
)
def test_what_is_not_counted_or_not_understood_is_not_bounded(plan):
    assert bound(plan).rows is None


def test_a_text_that_was_cut_off_is_not_bounded():
    assert bound_in(f"== Optimized Logical Plan ==\n{SMALL}").rows is None
    assert bound(SMALL, physical="").rows is None


def test_more_rows_than_one_task_should_take_are_not_small():
    assert not bound(SMALL.replace("2.00E+4", "2.01E+5")).small
