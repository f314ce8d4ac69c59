"""Options of calls: precedence, invalid options, and their effect on the function."""

import threading
import time

import pytest
from pyspark.sql import functions as F

import udf_server as udf
from remote_udf.errors import InvalidOption
from tests.conftest import set_back
from udf_server.aggregate.declaration import declare_aggregate

PREFIX = "spark.remoteudf.async-scalar"


@pytest.fixture
def session_settings(spark):
    """Sets session options for one test."""
    keys = []

    def set_(**values):
        for key, value in values.items():
            spark.conf.set(f"{PREFIX}.{key}", value)
            keys.append(f"{PREFIX}.{key}")

    yield lambda values: set_(**values)
    for key in keys:
        spark.conf.unset(key)


@pytest.mark.connect
def test_settings_functions_and_views_of_tests_are_set_back(spark):
    before = dict(spark.conf.getAll)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set(f"{PREFIX}.timeout", "9 s")
    spark.conf.unset("spark.sql.shuffle.partitions")
    spark.udf.register("left_by@1", lambda n: n)
    spark.range(1).createOrReplaceTempView("left_by_a_test")
    set_back(spark, before)
    assert dict(spark.conf.getAll) == before
    assert spark.sql("SHOW USER FUNCTIONS").collect() == []
    assert not spark.catalog.tableExists("left_by_a_test")


@pytest.mark.connect
def test_the_call_wins_over_session_then_server_then_declaration(remote, spark, session_settings):
    attempts = []

    @udf.scalar(max_attempts=2, fixed_delay="1 ms")
    def flaky(x: int) -> int:
        attempts.append(x)
        raise udf.RetryableError("again")

    session = remote(flaky, functions={"flaky": {"max-attempts": "7"}})

    def calls(**options):
        attempts.clear()
        flaky_ = session.function("flaky", on_error="null", **options)
        spark.range(1).select(flaky_("id")).collect()
        return len(attempts)

    assert calls() == 7
    session_settings({"flaky.max-attempts": "4", "max-attempts": "5"})
    assert calls() == 4
    assert calls(max_attempts=3) == 3


@pytest.mark.connect
def test_a_setting_for_all_functions_gives_way_to_one_for_this_function(remote, spark, session_settings):
    @udf.scalar
    def fails(x: int) -> int:
        raise ValueError("no")

    fails_ = remote(fails).function("fails")
    session_settings({"on-error": "null"})
    assert spark.range(1).select(fails_("id")).first()[0] is None
    session_settings({"fails.on-error": "fail"})
    with pytest.raises(Exception, match="ValueError: no"):
        spark.range(1).select(fails_("id")).collect()


@pytest.mark.connect
def test_unknown_and_senseless_options_are_refused_with_the_known_ones(remote, spark, session_settings):
    @udf.scalar
    def same(x: int) -> int:
        return x

    same_ = remote(same).function("same")
    with pytest.raises(InvalidOption, match=r"unknown option 'bufer_capacity', did you mean 'buffer-capacity'\?"):
        same_.with_options(bufer_capacity=3)("id")
    with pytest.raises(InvalidOption, match="max-attempts 5 contradicts retry-strategy 'none'"):
        same_.with_options(retry_strategy="none", max_attempts=5)("id")
    session_settings({"other.timout": "1 s"})
    with pytest.raises(InvalidOption, match=r"session setting .*other.timout: unknown option 'timout'"):
        same_("id")


@pytest.mark.connect
def test_a_setting_that_applies_to_no_function_is_named_in_one_warning(remote, spark, session_settings, caplog):
    @udf.scalar
    def locate_place(x: int) -> int:
        return x

    class CountPlaces(udf.AggregateFunction):
        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, accumulator: int, x: int) -> int:
            return accumulator + 1

        def get_value(self, accumulator: int) -> int:
            return accumulator

    @udf.scalar
    def other_server(x: int) -> int:
        return x

    locate = remote(locate_place, declare_aggregate(CountPlaces)).function("locate_place")
    remote(other_server)
    group, wrong = PREFIX.rpartition(".")[0], "spark.remoteudf.asnyc-scalar.timeout"
    names = ["locate_palce", "locate_place@1", "count_places", "other_server"]
    session_settings({f"{name}.timeout": "9 s" for name in names})
    spark.conf.set(wrong, "9 s")
    try:
        for _ in range(2):
            locate("id")
    finally:
        spark.conf.unset(wrong)
    begins = [f"session setting {PREFIX}.{name}.timeout has no effect: " for name in names]
    assert sorted(record.getMessage() for record in caplog.records if "no effect" in record.getMessage()) == sorted([
        f"{begins[0]}no function of kind scalar has the name 'locate_palce'; did you mean 'locate_place'?",
        f"{begins[1]}it is for all versions of a function, so write 'locate_place' instead of 'locate_place@1'",
        f"{begins[2]}options of function 'count_places' are below {group}.bundled-agg",
        f"session setting {wrong} has no effect: the settings are those below {PREFIX}, {group}.bundled-agg, "
        f"{group}.emit, {group}.process-table; did you mean 'async-scalar'?",
    ])  # fmt: skip


@pytest.mark.parametrize("rows_per_task", [64])
def test_buffer_capacity_bounds_the_rows_in_flight_of_one_task(remote, spark, rows_per_task):
    running, most = 0, 0
    lock = threading.Lock()

    @udf.scalar
    def busy(x: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.005)
        with lock:
            running -= 1
        return x

    session = remote(busy)
    for capacity in (1, 5):
        most = 0
        busy_ = session.function("busy", buffer_capacity=capacity)
        spark.range(0, rows_per_task, 1, 1).select(busy_("id")).collect()
        assert 1 <= most <= capacity
        session.with_columns(spark.range(0, rows_per_task, 1, 1), {"y": busy_("id")}, output_mode="unordered").collect()
        assert most <= capacity


def test_the_deadline_of_a_row_covers_its_retries(remote, spark):
    @udf.scalar(retry_strategy="fixed-delay", fixed_delay="200 ms", max_attempts=100, timeout="1 s")
    async def never(x: int) -> int:
        raise udf.RetryableError("not yet")

    never_ = remote(never).function("never", on_error="column")
    error = spark.range(1).select(never_("id").alias("r")).first().r.error
    assert error.code == "TIMEOUT"
    assert error.message.startswith("timed out: no result within 1 s after ")
    assert "RetryableError: not yet" in error.message
    assert 2 <= error.attempts <= 6


@pytest.mark.connect
def test_a_vectorized_function_gets_no_more_rows_than_batch_rows(remote, spark):
    sizes = []

    import pyarrow as pa

    @udf.scalar(vectorized=True, batch_rows=700)
    def note(x: pa.Int64Array) -> pa.Int64Array:
        sizes.append(len(x))
        return x

    note_ = remote(note).function("note")
    assert spark.range(0, 5000, 1, 1).agg(F.sum(note_("id"))).first()[0] == sum(range(5000))
    assert max(sizes) <= 700
    assert sum(sizes) == 5000
