"""The functions of udf-process and udf-aggregates, in random order of rows and tables, as batch and stream.

Each key is a case of its own. Rows arrive in any order within the delay of the watermark, and the tables of a function
are cut into micro-batches independently. A stream, the batch query over the same files, and a plain model of each
function have the same result. Times are multiples of ten seconds and lengths are not, so that no row is at the edge.
"""

import datetime as dt
import functools
import json
import os
import random
import statistics
from collections import Counter, defaultdict

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import udf_aggregates
import udf_process
from spark_client.windows import tumble
from udf_server.aggregate.declaration import declare_aggregate
from udf_server.process.declaration import declare_process

pytestmark = [pytest.mark.long, pytest.mark.timeout(600), pytest.mark.usefixtures("rocksdb")]

SCHEMA = "k string, side string, v string, n bigint, at timestamp"
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
CUTS = {"left": 2, "right": 4}
"""The tables have different numbers of micro-batches, and their watermarks different paces."""
DELAY, LENGTH, LIMIT = 120, dt.timedelta(seconds=95), dt.timedelta(seconds=205)
STEPS = ["view", "cart", "pay"]
RULES = [("burst", 3, 0.0, 125.0), ("large", 1, 8.0, 0.0), ("sum", 2, 12.0, 65.0)]
KINDS = ["INSERT", "UPDATE_BEFORE", "UPDATE_AFTER", "DELETE"]


def drawn(random):
    """Rows of thirty keys, in the order of their times."""
    rows = []
    for key in range(30):
        for place in sorted(random.sample(range(60), random.randint(0, 9))):
            at, side = START + dt.timedelta(seconds=10 * place), random.choice(["left", "right"])
            rows.append((f"k{key}", side, random.choice([*STEPS, *KINDS]), random.randint(0, 9), at))
        if random.random() < 0.3:
            rows.append((f"k{key}", "left", "view", 1, None))
    return sorted(rows, key=lambda row: (row[4] or START, row))


def written(folder, random, rows):
    """Writes the rows of each side as files, one for each micro-batch, and one that ends the stream."""
    for side in ("left", "right"):
        there = folder / side
        there.mkdir(parents=True)
        own = [row for row in rows if row[1] == side]
        delayed = [((row[4] or START) + dt.timedelta(seconds=random.uniform(0, DELAY)), row) for row in own]
        arrived = [row for _, row in sorted(delayed, key=lambda each: each[0])]
        cuts = sorted(random.sample(range(len(arrived)), CUTS[side]))
        parts = [arrived[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
        for number, part in enumerate([*parts, [("end", side, None, 0, START + dt.timedelta(days=9))]]):
            path = there / f"{number}.json"
            named = [dict(zip(("k", "side", "v", "n", "at"), row, strict=True)) for row in part]
            path.write_text("\n".join(json.dumps(row, default=str) for row in named))
            os.utime(path, (1_700_000_000 + number,) * 2)


def calls(remote, left, right, rules):
    """The result of each function, by name: its columns without times of rows, which depend on when timers fire."""
    by_key = {"partition_by": "k", "on_time": "at"}
    sides = {name: frame.select("k", "v", "at") for name, frame in (("left", left), ("right", right))}
    present = left.where("at IS NOT NULL")
    operations = left.where(F.col("v").isin(KINDS)).select("k", "n", F.col("v").alias("op"))
    changes = remote.process("from_changelog", operations, partition_by="k")
    return {
        "session_alerts": remote.process("session_alerts", left, **by_key, gap=LENGTH).drop("rowtime"),
        "one_match_join": remote.process("one_match_join", sides, **by_key, patience=LENGTH).drop("rowtime", "k0"),
        "funnel": remote.process("funnel", left, **by_key, steps=STEPS, within=LIMIT, column="v").drop("rowtime"),
        "sla_alerts": remote.process(
            "sla_alerts", left, **by_key, begins="view", ends="pay", within=LIMIT, column="v"
        ).drop("rowtime"),
        "deduplicate": remote.process("deduplicate", present, partition_by="k", order_by="at").select("k", "v", "n"),
        "trailing_median": remote.process(
            "trailing_median", present, partition_by="k", order_by="at", column="n", rows=3
        ).select("k", "n", "median"),
        "fraud_rules": remote.process(
            "fraud_rules", {"payments": present.withColumnRenamed("n", "amount"), "rule": rules},
            partition_by={"payments": "k"}, order_by={"payments": "at"}, time="at",
        ),
        "to_changelog": remote.process("to_changelog", changes, partition_by="k").select("k", "op", "n"),
    }  # fmt: skip


def sessions(rows):
    """Rows of a key in their order, cut where there was none for LENGTH."""
    found = []
    for row in rows:
        if found and row[4] - found[-1][-1][4] <= LENGTH:
            found[-1].append(row)
        else:
            found.append([row])
    return [(each[0][4], each[-1][4], len(each)) for each in found]


def matches(rows):
    waiting = {"left": [], "right": []}
    found = []
    for _, side, value, _, at in sorted(rows, key=lambda row: (row[4], row[1])):
        other = "right" if side == "left" else "left"
        near = [each for each in waiting[other] if at - each[1] <= LENGTH]
        if near:
            waiting[other].remove(near[0])
            found.append((value, near[0][0]) if side == "left" else (near[0][0], value))
        else:
            waiting[side].append((value, at))
    alone = [(value, None) for value, _ in waiting["left"]] + [(None, value) for value, _ in waiting["right"]]
    return found + alone


def attempts(rows):
    found, started, made = [], None, 0
    for _, _, step, _, at in rows:
        if made and at > started + LIMIT:
            found.append((started, made, False))
            made = 0
        if step != STEPS[made]:
            continue
        started, made = (at, 1) if not made else (started, made + 1)
        if made == len(STEPS):
            found.append((started, made, True))
            made = 0
    return found + ([(started, made, False)] if made else [])


def alerts(rows):
    found, began = [], None
    for _, _, status, _, at in rows:
        if began is not None and at > began + LIMIT:
            found.append((began, began + LIMIT))
            began = None
        if status == "pay":
            began = None
        elif status == "view" and began is None:
            began = at
    return found + ([(began, began + LIMIT)] if began else [])


def broken(rows):
    return [
        (name, len(recent), float(sum(recent)))
        for place, row in enumerate(rows)
        for name, at_least, total, seconds in RULES
        for recent in [[past[3] for past in rows[: place + 1] if (row[4] - past[4]).total_seconds() <= seconds]]
        if len(recent) >= at_least and sum(recent) >= total
    ]


def medians(rows):
    return [(row[3], float(statistics.median(r[3] for r in rows[max(0, i - 2) : i + 1]))) for i, row in enumerate(rows)]


def model(rows):
    """What each function makes of all rows, as `calls`."""
    keys = defaultdict(list)
    for row in rows:
        if row[4] is not None:
            keys[row[0]].append(row)
    lefts = {key: [row for row in own if row[1] == "left"] for key, own in keys.items()}
    per_key = {
        "session_alerts": sessions, "funnel": attempts, "sla_alerts": alerts, "trailing_median": medians,
        "fraud_rules": broken, "deduplicate": lambda own: [row[2:4] for row in own[:1]],
    }  # fmt: skip
    found = {
        name: Counter((key, *each) for key, own in lefts.items() for each in of(own)) for name, of in per_key.items()
    }
    found["one_match_join"] = Counter((key, *each) for key, own in keys.items() for each in matches(own))
    operations = [(row[0], row[2], row[3]) for row in rows if row[1] == "left" and row[2] in KINDS]
    return {**found, "to_changelog": Counter(operations)}


def counted(frame):
    """The rows of a query by the name of the function, as `model`."""
    found = defaultdict(Counter)
    for name, text in frame.collect():
        row = tuple(json.loads(text).values())
        if row[0] != "end":
            found[name][row] += 1
    return found


def named(results):
    """All results as one frame of name and row."""
    options = {"ignoreNullFields": "false"}
    frames = (
        frame.select(F.lit(name).alias("name"), F.to_json(F.struct("*"), options).alias("row"))
        for name, frame in results.items()
    )
    return functools.reduce(DataFrame.unionAll, frames)


def as_json(row):
    return tuple(each.strftime("%Y-%m-%dT%H:%M:%S.000Z") if isinstance(each, dt.datetime) else each for each in row)


def of_stream(frame, tmp_path):
    sink = frame.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    sink = sink.option("checkpointLocation", str(tmp_path / "checkpoint"))
    sink.trigger(availableNow=True).start().awaitTermination()
    return frame.sparkSession.read.parquet(str(tmp_path / "out"))


@pytest.mark.parametrize("seed", [int(os.environ.get("SHIPPED_SEED", "1"))])
def test_process_functions_do_not_depend_on_the_order_in_which_rows_arrive(remote, spark, zone, tmp_path, seed):
    zone("UTC")
    functions = remote(*map(declare_process, udf_process.udf_functions()))
    draws = random.Random(seed)
    rows = drawn(draws)
    written(tmp_path / "in", draws, rows)
    rules = spark.createDataFrame(RULES, "name string, at_least int, total double, seconds double")

    def tables(reader):
        return [reader.schema(SCHEMA).json(str(tmp_path / "in" / side)) for side in ("left", "right")]

    batch = counted(named(calls(functions, *tables(spark.read), rules)))
    left, right = tables(spark.readStream.option("maxFilesPerTrigger", 1))
    timed = left.withWatermark("at", f"{DELAY} seconds"), right.withWatermark("at", f"{3 * DELAY} seconds")
    stream = counted(of_stream(named(calls(functions, *timed, rules)), tmp_path))
    wrong = {}
    for name, wanted in model(rows).items():
        expected = Counter({as_json(row): count for row, count in wanted.items()})
        for how, found in (("batch", batch[name]), ("stream", stream[name])):
            if found != expected:
                wrong[name, how] = {"lost": expected - found, "added": found - expected}
    print(wrong)
    assert not wrong, list(wrong)


@pytest.mark.parametrize("seed", [int(os.environ.get("SHIPPED_SEED", "1"))])
def test_aggregates_of_windows_do_not_depend_on_the_order_in_which_rows_arrive(remote, spark, zone, tmp_path, seed):
    zone("UTC")
    functions = remote(*(declare_aggregate(each()) for each in udf_aggregates.udf_functions()))
    draws = random.Random(seed)
    rows = drawn(draws)
    written(tmp_path / "in", draws, rows)
    shares = {"percentile": 0.3, "approx_quantile": 0.5, "top_k": 2, "weighted_average": 2.0}
    names = [declare_aggregate(each()).spec.name for each in udf_aggregates.udf_functions()]

    def summed(frame):
        windows = tumble(frame, "at", "5 minutes")
        values = [
            functions.function(f"{name}@1")(*(
                ["v"] if name == "mode" else ["n", F.lit(shares[name])] if name in shares
                # The mean depends on the order of rows, so all values of a key are the same.
                else [F.length("k"), F.lit(0.5)] if name == "ewm_mean" else ["n"]
            )).alias(name)
            for name in names
        ]  # fmt: skip
        grouped = functions.group_by(windows, "window_start", "window_end", "window_time", "k").agg(*values)
        shown = [(F.col(name)[0] if name == "top_k" else F.col(name)).alias(name) for name in names]
        return named({"all": grouped.select("k", F.col("window_start").cast("string").alias("start"), *shown)})

    (batch,) = counted(summed(spark.read.schema(SCHEMA).json(str(tmp_path / "in" / "left")))).values()
    files = spark.readStream.option("maxFilesPerTrigger", 1).schema(SCHEMA).json(str(tmp_path / "in" / "left"))
    (stream,) = counted(of_stream(summed(files.withWatermark("at", f"{DELAY} seconds")), tmp_path)).values()
    assert stream == batch
    groups = defaultdict(list)
    for key, side, value, number, at in rows:
        if side == "left" and at is not None:
            start = START + (at - START) // dt.timedelta(minutes=5) * dt.timedelta(minutes=5)
            groups[key, start.strftime("%Y-%m-%d %H:%M:%S")].append((number, value))
    assert len(batch) == len(groups)
    for row in batch:
        found = dict(zip(names, row[2:], strict=True))
        numbers = sorted(number for number, _ in groups[row[:2]])
        words = [word for _, word in groups[row[:2]]]
        place = 0.3 * (len(numbers) - 1)
        low, high = numbers[int(place)], numbers[min(int(place) + 1, len(numbers) - 1)]
        expected = {
            "average": statistics.fmean(numbers), "exact_sum": sum(numbers), "minimum": numbers[0],
            "maximum": numbers[-1], "median": statistics.median(numbers), "ewm_mean": len(row[0]),
            "percentile": low + (high - low) * (place - int(place)), "weighted_average": statistics.fmean(numbers),
            "mode": min(set(words), key=lambda word: (-words.count(word), word)),
            "approx_distinct": len(set(numbers)), "top_k": max(numbers),
        }  # fmt: skip
        assert found.pop("approx_quantile") in numbers
        assert found == pytest.approx(expected)
