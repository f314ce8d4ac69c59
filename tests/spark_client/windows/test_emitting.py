"""When windows of a stream fire: options, the rule for one window of a key, and the changes of a bucket of keys."""

import dataclasses
import decimal
import itertools
import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_udf.errors import InvalidOption
from remote_udf.row_kinds import CODE_TYPE, RowKind
from spark_client import PlanError
from spark_client.base.errors import StateMismatch
from spark_client.executor.aggregate.fired import FiredBucket, Step
from spark_client.executor.aggregate.firing import EmitOptions, FirePlan, Firing
from spark_client.executor.aggregate.running import Running
from spark_client.windows.emitting import emit_options


def test_options_of_the_call_win_over_those_of_the_session_which_have_flinks_names():
    session = {"spark.remoteudf.emit.early-fire.enabled": "true", "spark.remoteudf.emit.early-fire.delay": "1 s"}
    assert emit_options({}, session) == EmitOptions(early=1000)
    assert emit_options({"early_fire_delay": "0 s"}, session) == EmitOptions(early=0)
    assert emit_options({"early_fire_enabled": False}, session) == EmitOptions()
    late = {"late_fire_delay": "2 s", "allow_lateness": "1 minute"}
    assert emit_options(late, {}) == EmitOptions(late=2000, lateness=60_000)


def test_lateness_without_late_fire_is_ignored():
    assert emit_options({"allow_lateness": "1 minute"}, {}) == EmitOptions()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"early_fire_enabled": True}, "Early-fire delay should not be null or negative value"),
        ({"early_fire_delay": "-1 s"}, "Early-fire delay should not be null or negative value.*found -1 s"),
        ({"late_fire_enabled": True}, "Late-fire delay should not be null or negative value"),
        ({"late_fire_delay": "0 s"}, "'AFTER WATERMARK' emit strategy.*requires set 'allow-lateness'"),
        ({"late_fire_delay": "5 s", "allow_lateness": "1 s"}, "allow-lateness 1 s is shorter than late-fire-delay 5 s"),
        ({"allow_lateness": "-1 s"}, "allow-lateness -1 s is negative"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, says):
    with pytest.raises(PlanError, match=says):
        emit_options(options, {})


@pytest.mark.parametrize("options", [{"early_fire": "1 s"}, {"early_fire_delay": "soon"}, {"late_fire_enabled": 3}])
def test_unknown_and_malformed_options_are_refused(options):
    with pytest.raises(InvalidOption):
        emit_options(options, {})


def test_early_fires_are_counted_from_the_first_row_of_a_window():
    firing, options = Firing(), EmitOptions(early=1000)
    assert not firing.rows_came(options, 2999, 0, 200)
    assert not firing.rows_came(options, 2999, 0, 900)
    due = [now for now in (1100, 1200, 1300, 2199, 2200, 7000, 7100) if firing.time_passed(options, 2999, 0, now)]
    assert due == [1200, 2200, 7000]
    assert firing.early_at == 7200, "not aligned to the clock, and missed ones are not made up for"


def test_the_watermark_fires_a_window_once_when_it_reaches_the_last_millisecond():
    firing, options = Firing(), EmitOptions(early=0)
    assert firing.rows_came(options, 2999, 0, 0)
    assert [firing.time_passed(options, 2999, watermark, 0) for watermark in (2998, 2999, 3000)] == [False, True, False]


def test_a_window_first_seen_after_its_end_fires_for_its_first_row_whatever_the_late_delay():
    firing, options = Firing(), EmitOptions(late=1000, lateness=5000)
    assert firing.rows_came(options, 2999, 3000, 0)
    assert not firing.rows_came(options, 2999, 3000, 10)
    assert [now for now in (1000, 1010) if firing.time_passed(options, 2999, 3000, now)] == [1010]


SUM = Running("sum", 1, False, pa.int64(), pa.int64(), keeps_all=True)
COUNT = Running("count", None, False, None, pa.int64(), keeps_all=True)
MAX = Running("max", 1, False, pa.int64(), pa.int64(), keeps_all=True)


class Windowed:
    """A bucket of the windows [0 ms, 3000 ms) of keys, with its state saved and restored at every step."""

    def __init__(self, options, key_type=None):
        self.key_type = key_type or pa.string()
        names = ("row_kind", "k", "sum", "count", "max")
        shown = ((False, 0), (False, 1), (False, 2))
        self.plan = FirePlan(options, (), (SUM, COUNT, MAX), shown, (0,), ("k",), (self.key_type,), 2, names)
        self.state = None

    def step(self, watermark, now, *rows):
        """Rows are (kind, key, value); changes come as tuples, sorted by key."""
        bucket = FiredBucket(self.plan, self.state)
        columns = [pa.array([row[1] for row in rows], self.key_type), pa.array([row[2] for row in rows], pa.int64())]
        columns.append(pa.array([RowKind(row[0]).code for row in rows], CODE_TYPE))
        table = pa.table(columns, names=["k", "v", "kind"]) if rows else None
        changes = bucket.changes(Step(2999, watermark, now), table)
        self.state = bucket.saved
        found = [] if changes is None else [tuple(row.values()) for row in changes.to_pylist()]
        return sorted(found, key=lambda row: repr(row[1]))


def test_changes_say_what_became_of_a_window():
    window = Windowed(EmitOptions(early=0, late=0, lateness=2000))
    assert window.step(0, 0, ("+I", "a", 5), ("+I", "a", 2)) == [("+I", "a", 7, 2, 5)]
    assert window.step(0, 0, ("-D", "a", 5)) == [("-U", "a", 7, 2, 5), ("+U", "a", 2, 1, 2)]
    assert window.step(0, 0, ("+I", "a", 9), ("-D", "a", 9)) == [], "nothing changed"
    assert window.step(2999, 0) == [], "the fire at the end has nothing new"
    assert window.step(3500, 0, ("-D", "a", 2)) == [("-D", "a", 2, 1, 2)]
    assert window.step(3500, 0, ("+I", "b", 1), ("-D", "b", 1)) == []
    assert window.step(4998, 0, ("+I", "b", 1)) == [("+I", "b", 1, 1, 1)]
    assert window.state is not None
    assert window.step(4999, 0, ("+I", "b", 1)) == [], "too late"
    assert window.state is None


def test_a_window_with_fewer_rows_than_none_is_emitted():
    window = Windowed(EmitOptions(early=0))
    assert window.step(0, 0, ("-D", "a", 5)) == [("+I", "a", -5, -1, None)]


def test_late_rows_are_dropped_where_none_are_allowed():
    window = Windowed(EmitOptions(early=1000))
    window.step(0, 0, ("+I", "a", 5))
    assert window.step(2999, 10, ("+I", "a", 5)) == [("+I", "a", 5, 1, 5)]
    assert window.state is None


def test_a_window_fired_by_the_watermark_has_the_values_before_the_late_rows_of_its_micro_batch():
    window = Windowed(EmitOptions(late=0, lateness=2000))
    assert window.step(0, 0, ("+I", "a", 5)) == []
    assert window.step(2999, 0, ("+I", "a", 2)) == [
        ("+I", "a", 5, 1, 5), ("-U", "a", 5, 1, 5), ("+U", "a", 7, 2, 5),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        (
            {"runnings": (SUM, MAX), "shown": ((False, 0), (False, 1))},
            "values: found ['sum(bigint) -> bigint', 'count(*) -> bigint', 'max(bigint) -> bigint'] in the checkpoint, "
            "expected ['sum(bigint) -> bigint', 'max(bigint) -> bigint']",
        ),
        ({"runnings": (COUNT, SUM, MAX)}, "expected ['count(*) -> bigint', 'sum(bigint) -> bigint', 'max("),
        ({"key_names": ("user",)}, "keys: found ['k string'] in the checkpoint, expected ['user string']"),
        ({"key_types": (pa.int64(),)}, "keys: found ['k string'] in the checkpoint, expected ['k bigint']"),
        ({"keys": (), "key_names": (), "key_types": ()}, "found ['k string'] in the checkpoint, expected nothing"),
        ({"kinds": None}, "changelog: found True in the checkpoint, expected False"),
        ({"options": EmitOptions(early=1000)}, "delays by the clock: found False in the checkpoint, expected True"),
    ],
)  # fmt: skip
def test_state_that_another_query_wrote_is_refused_with_what_was_found_and_expected(changes, difference):
    window = Windowed(EmitOptions(early=0))
    window.step(0, 0, ("+I", "a", 5))
    window.plan = dataclasses.replace(window.plan, **changes)
    with pytest.raises(StateMismatch) as raised:
        window.step(0, 0)
    assert difference in str(raised.value)
    assert str(raised.value).startswith("windows that fire early or late: their state does not fit the checkpoint: ")
    assert str(raised.value).endswith(". Start from a new checkpoint, or aggregate as before")


def test_delays_and_lateness_may_change_with_state():
    window = Windowed(EmitOptions(late=0, lateness=2000))
    assert window.step(0, 0, ("+I", "a", 5)) == []
    window.plan = dataclasses.replace(window.plan, options=EmitOptions(early=0, late=0, lateness=9000))
    assert window.step(0, 0, ("+I", "a", 1)) == [("+I", "a", 6, 2, 5)]
    assert window.step(11_998, 0, ("+I", "a", 1)) == [("-U", "a", 6, 2, 5), ("+U", "a", 7, 3, 5)]
    assert window.step(11_999, 0, ("+I", "a", 1)) == []


KEYS = st.sampled_from([[7, 3, 5, None], ["b", "a", None], [1 << 40, -(1 << 40), 0], [2.5, float("inf"), -1.0]])
"""Numbers that lie near each other, and others: keys are told apart in more than one way."""
KEYED_ROWS = KEYS.flatmap(
    lambda keys: st.tuples(
        st.just(pa.array(keys).type),
        st.lists(st.tuples(st.sampled_from(["+I", "-D"]), st.sampled_from(keys), st.integers(-5, 5)), max_size=30),
    )
)


@given(KEYED_ROWS, st.lists(st.integers(0, 30), max_size=6))
def test_however_rows_are_cut_into_micro_batches_the_changelog_leaves_the_same_table(keyed, cuts):
    key_type, rows = keyed
    window, table = Windowed(EmitOptions(early=0, late=0, lateness=10), key_type), {}
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    for start, end in itertools.pairwise(bounds):
        for kind, key, *values in window.step(0, 0, *rows[start:end]):
            if kind in ("-U", "-D"):
                assert table.pop(key) == values
            else:
                assert key not in table
                table[key] = values
    expected = {}
    for key in {key for _, key, _ in rows}:
        own = [(1 if kind == "+I" else -1, v) for kind, k, v in rows if k == key]
        net = {v: sum(sign for sign, other in own if other == v) for _, v in own}
        if sum(net.values()):
            most = max((v for v, count in net.items() if count > 0), default=None)
            total = sum(v * n for v, n in net.items())
            # The sum of as many rows as are retracted is null, as where there are none.
            expected[key] = [total, sum(net.values()), most]
    assert table == expected


def test_running_values_are_those_of_sparks_own_aggregates():
    price = pa.decimal128(10, 2)
    values = [decimal.Decimal("1.10"), None, decimal.Decimal("2.25"), decimal.Decimal("1.10")]
    signs = [1, 1, 1, 1]

    def value(function, result, *, distinct=False):
        running = Running(function, 0, distinct, price, result, keeps_all=False)
        return running.value(running.added(None, values, signs))

    assert value("sum", pa.decimal128(20, 2)) == decimal.Decimal("4.45")
    assert value("avg", pa.decimal128(14, 6)) == decimal.Decimal("1.483333")
    assert value("count", pa.int64()) == 3
    assert value("count", pa.int64(), distinct=True) == 2
    assert value("sum", pa.decimal128(20, 2), distinct=True) == decimal.Decimal("3.35")
    assert value("min", price) == decimal.Decimal("1.10")


NUMBERS = st.sampled_from([math.nan, float("nan"), math.inf, -math.inf, -0.0, 0.0, 1.5, -2.5, None])


@given(st.lists(st.tuples(NUMBERS, st.booleans()), max_size=12), st.integers(0, 12))
def test_nan_is_one_value_and_the_largest(rows, cut):
    """Some rows are retracted again, after the state was saved; the remaining ones are the oracle."""
    values, signs = [v for v, _ in rows], [1] * len(rows)
    for v, is_retracted in rows:
        if is_retracted:
            values.append(v)
            signs.append(-1)
    left = sorted((v for v, gone in rows if v is not None and not gone), key=lambda v: (math.isnan(v), v))
    different = len({"NaN" if math.isnan(v) else v for v in left})
    expected = {"min": left[0] if left else None, "max": left[-1] if left else None, "count": different}
    # These numbers have exact sums.
    expected |= {"sum": sum(left) if left else None, "avg": sum(left) / len(left) if left else None}
    for function, wanted in expected.items():
        result = pa.int64() if function == "count" else pa.float64()
        running = Running(function, 0, function == "count", pa.float64(), result, keeps_all=True)
        state = running.added(None, values[:cut], signs[:cut])
        # Arrow makes new objects of the values, as between micro-batches.
        state = pa.array([state], running.state).to_pylist()[0]
        found = running.value(running.added(state, values[cut:], signs[cut:]))
        assert found == wanted or (math.isnan(found) and math.isnan(wanted))


DIGITS = st.one_of(st.integers(-9, 9), st.integers(10**29, 10**37).flatmap(lambda n: st.sampled_from([n, -n])))


@given(st.lists(st.tuples(DIGITS, st.booleans()), max_size=6), st.integers(0, 12), st.booleans())
def test_decimals_keep_all_of_their_digits(rows, cut, distinct):
    """The numbers of hundredths are the oracle. The sum of the values that were retracted must fit a decimal, too."""
    changes = [(n, 1) for n, _ in rows] + [(n, -1) for n, gone in rows if gone]
    left = [n for n, gone in rows if not gone]
    left = list(dict.fromkeys(left)) if distinct else left
    type_ = pa.decimal128(38, 2)
    running = Running("sum", 0, distinct, type_, type_, keeps_all=True)
    state = None
    for part in (changes[:cut], changes[cut:]):
        values = [decimal.Decimal(n).scaleb(-2, decimal.Context(prec=38)) for n, _ in part]
        state = pa.array([running.added(state, values, [sign for _, sign in part])], running.state).to_pylist()[0]
    assert running.value(state) == (decimal.Decimal(f"{sum(left)}e-2") if left else None)
