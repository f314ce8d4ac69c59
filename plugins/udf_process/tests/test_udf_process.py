"""Every function is called step by step, as a query would call it."""

import datetime
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_udf.errors import InvalidCall
from udf_process import (
    Deduplicate,
    FraudRules,
    FromChangelog,
    Funnel,
    OneMatchJoin,
    SessionAlerts,
    SlaAlerts,
    ToChangelog,
    TrailingMedian,
    udf_functions,
)
from udf_server import ChangelogMode, RowKind
from udf_server.process.declaration import declare_process
from udf_server.testing import ProcessTableHarness, table

UPDATES = ChangelogMode.of(*RowKind)
START = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
MINUTE = datetime.timedelta(minutes=1)


def at(minutes):
    return START + minutes * MINUTE


def test_all_functions_are_offered_with_a_description():
    specs = [declare_process(function).spec for function in udf_functions()]
    assert len({spec.name for spec in specs}) == 9
    assert all(spec.description for spec in specs)


class TestToChangelog:
    def harness(self, partition_by=None, **arguments):
        given = table("id int, name string", partition_by=partition_by, changelog_mode=UPDATES)
        return ProcessTableHarness(ToChangelog, {"input": given}, **arguments)

    def changes(self, harness):
        for kind, row in (("+I", (1, "a")), ("-U", (1, "a")), ("+U", (1, "b")), ("-D", (1, "b"))):
            harness.row("input", row, kind)
        return harness.take()

    def test_operations_stand_in_a_column_before_the_others(self):
        harness = self.harness()
        assert self.changes(harness) == [
            ("INSERT", 1, "a"),
            ("UPDATE_BEFORE", 1, "a"),
            ("UPDATE_AFTER", 1, "b"),
            ("DELETE", 1, "b"),
        ]
        assert harness.columns.names == ["op", "id", "name"]

    def test_with_a_key_the_key_comes_first(self):
        harness = self.harness(partition_by="name", op=["what"])
        harness.row("input", (7, "a"))
        assert harness.columns.names == ["name", "what", "id"]
        assert harness.take() == [("a", "INSERT", 7)]

    def test_operations_that_are_not_mapped_are_left_out(self):
        harness = self.harness(op_mapping=[("INSERT, UPDATE_AFTER", "set"), ("DELETE", "gone")])
        assert self.changes(harness) == [("set", 1, "a"), ("set", 1, "b"), ("gone", 1, "b")]

    def test_deletes_keep_the_key_alone_if_asked(self):
        harness = self.harness(partition_by="id", produces_full_deletes=False)
        assert self.changes(harness)[-1] == (1, "DELETE", None)

    def test_without_the_column_the_table_stays_as_it_is(self):
        harness = self.harness(include_op_column=False)
        harness.row("input", (1, "a"))
        assert harness.columns.names == ["id", "name"]
        assert harness.take() == [(1, "a")]

    @pytest.mark.parametrize(
        ("mapping", "message"),
        [
            ([("UPSERT", "u")], "Unknown change operation: 'UPSERT'"),
            ([("INSERT,DELETE", "a"), ("DELETE", "b")], "Duplicate change operation: 'DELETE'"),
        ],
    )
    def test_a_wrong_mapping_is_refused(self, mapping, message):
        with pytest.raises(ValueError, match=message):
            self.harness(op_mapping=mapping).row("input", (1, "a"))

    def test_the_column_has_one_name(self):
        with pytest.raises(InvalidCall, match=r"to_changelog.*'op' must contain exactly one column name, not 'a', 'b'"):
            self.harness(op=["a", "b"])

    def test_deletes_of_a_table_without_a_key_keep_all_columns(self):
        harness = self.harness(produces_full_deletes=False)
        assert self.changes(harness)[-1] == ("DELETE", 1, "b")


class TestFromChangelog:
    def harness(self, partition_by=None, **arguments):
        given = table("id int, op string, name string", partition_by=partition_by)
        return ProcessTableHarness(FromChangelog, {"input": given}, **arguments)

    def test_codes_become_kinds(self):
        harness = self.harness(op_mapping=[("c, r", "INSERT"), ("d", "DELETE")])
        harness.row("input", (1, "r", "a"))
        harness.row("input", (1, "d", "a"))
        assert [(row.kind, tuple(row)) for row in harness.take()] == [("+I", (1, "a")), ("-D", (1, "a"))]
        assert harness.columns.names == ["id", "name"]

    def test_the_key_is_not_there_twice(self):
        harness = self.harness(partition_by="name")
        harness.row("input", (1, "INSERT", "a"))
        assert harness.columns.names == ["name", "id"]
        assert harness.take() == [("a", 1)]

    @pytest.mark.parametrize(("code", "shown"), [("X", "'X'"), (None, "NULL")])
    def test_a_code_that_stands_for_nothing_fails(self, code, shown):
        with pytest.raises(ValueError, match=f"Received invalid op code {shown} in column 'op'"):
            self.harness().row("input", (1, code, "a"))

    def test_a_column_of_operations_that_is_no_text_is_named(self):
        harness = ProcessTableHarness(FromChangelog, {"input": "id int, op int"}, op_mapping=[("1", "INSERT")])
        with pytest.raises(ValueError, match="column 'op' of operations must be of STRING type, found int32"):
            harness.row("input", (1, 1))

    def test_a_column_that_is_not_there_is_refused_before_anything_runs(self):
        with pytest.raises(InvalidCall, match=r"Invalid column 'kind' for argument 'op'.*id, op, name"):
            self.harness(op=["kind"])

    @pytest.mark.parametrize("name", ["invalid_op_handling", "error_handling"])
    def test_a_row_with_an_unknown_code_is_skipped_if_asked(self, name, caplog):
        for handling, warned in (("SKIP", 0), ("LOG", 1)):
            harness = self.harness(**{name: handling})
            for code in ("X", "INSERT"):
                harness.row("input", (1, code, "a"))
            assert harness.take() == [(1, "a")]
            assert len(caplog.messages) == warned
        assert "invalid op code 'X' in column 'op'" in caplog.text
        with pytest.raises(ValueError, match=rf"value for argument '{name}': 'skip', not one of FAIL, LOG, SKIP"):
            self.harness(**{name: "skip"}).row("input", (1, "X", "a"))

    def test_the_kinds_of_the_result_are_those_of_the_mapping(self):
        debezium = [("c, r", "INSERT"), ("u", "UPDATE_AFTER"), ("d", "DELETE")]
        harness = self.harness(partition_by="id", op_mapping=debezium)
        harness.row("input", (1, "u", "a"))
        assert harness.take()[0].kind == "+U"
        with pytest.raises(InvalidCall, match=r"op_mapping has UPDATE_AFTER without UPDATE_BEFORE.*PARTITION BY"):
            self.harness(op_mapping=debezium)
        with pytest.raises(InvalidCall, match="Unknown change operation: 'UPSERT' in op_mapping; there are INSERT, "):
            self.harness(op_mapping=[("u", "UPSERT")])

    def envelope(self, **arguments):
        given = table("before struct<id:int,v:string>, after struct<id:int,v:string>, op string, at int")
        mapping = [("c", "INSERT"), ("u", "UPDATE_AFTER, UPDATE_BEFORE"), ("d", "DELETE")]
        arguments = {"op_mapping": mapping, "before": ["before"], "after": ["after"], **arguments}
        return ProcessTableHarness(FromChangelog, {"input": given}, **arguments)

    def test_rows_before_and_after_an_update_are_two_changes(self):
        harness = self.envelope()
        old, new = {"id": 1, "v": "a"}, {"id": 1, "v": "b"}
        for row in ((None, old, "c", 7), (old, new, "u", 8), (new, None, "d", 9)):
            harness.row("input", row)
        assert harness.columns.names == ["id", "v", "at"]
        assert [(row.kind, *row) for row in harness.take()] == [
            ("+I", 1, "a", 7), ("-U", 1, "a", 8), ("+U", 1, "b", 8), ("-D", 1, "b", 9),
        ]  # fmt: skip

    def test_an_update_without_the_row_before_is_no_change(self):
        update = (None, {"id": 1, "v": "b"}, "u", 8)
        with pytest.raises(ValueError, match="op code 'u' without the row of its UPDATE_BEFORE in column 'op'"):
            self.envelope().row("input", update)
        harness = self.envelope(invalid_op_handling="SKIP")
        harness.row("input", update)
        assert harness.take() == []
        with pytest.raises(ValueError, match="before and after are given together"):
            self.envelope(before=None).row("input", update)
        with pytest.raises(InvalidCall, match="column 'op' for argument 'after' is string, not a struct"):
            self.envelope(after=["op"])

    @given(st.lists(st.tuples(st.sampled_from(list(RowKind)), st.integers(0, 9), st.text(max_size=3)), max_size=20))
    @settings(max_examples=25, deadline=None)
    def test_there_and_back_is_where_it_began(self, changes):
        there = ProcessTableHarness(ToChangelog, {"input": table("id int, name string", changelog_mode=UPDATES)})
        for kind, *row in changes:
            there.row("input", tuple(row), kind)
        back = ProcessTableHarness(FromChangelog, {"input": table(there.columns)})
        for row in there.take():
            back.row("input", tuple(row))
        assert [(row.kind, *row) for row in back.take()] == [(kind, id_, name) for kind, id_, name in changes]


class TestSessions:
    def harness(self):
        events = table("user string, ts timestamp", partition_by="user")
        return ProcessTableHarness(SessionAlerts, {"input": events}, on_time="ts", gap=10 * MINUTE)

    def test_an_alert_comes_when_a_key_was_silent_for_the_gap(self):
        harness = self.harness()
        for minute in (0, 4, 9):
            harness.row("input", ("Bob", at(minute)))
            harness.watermark(at(minute))
        assert harness.take() == []
        harness.watermark(at(19))
        assert harness.take() == [("Bob", at(0), at(9), 3, at(19))]
        assert harness.state_keys("session") == []

    def test_keys_have_sessions_of_their_own(self):
        harness = self.harness()
        harness.row("input", ("Bob", at(0)))
        harness.row("input", ("Alice", at(5)))
        harness.end_of_input()
        assert [(row.user, row.events) for row in harness.take()] == [("Bob", 1), ("Alice", 1)]

    def test_with_the_watermark_at_the_end_alone_sessions_are_the_same(self):
        harness = self.harness()
        for minute in (0, 4, 20, 21, 60):
            harness.row("input", ("Bob", at(minute)))
        harness.end_of_input()
        assert [tuple(row)[1:4] for row in harness.take()] == [
            (at(0), at(4), 2), (at(20), at(21), 2), (at(60), at(60), 1),
        ]  # fmt: skip


class TestOneMatchJoin:
    def harness(self, order_by=()):
        side = table("k string, v string, ts timestamp", partition_by="k", order_by=order_by)
        return ProcessTableHarness(OneMatchJoin, {"left": side, "right": side}, on_time="ts", patience=10 * MINUTE)

    def test_each_row_finds_one_partner(self):
        harness = self.harness()
        for value in ("l1", "l2"):
            harness.row("left", ("k", value, at(0)))
        for value in ("r1", "r2", "r3"):
            harness.row("right", ("k", value, at(1)))
        assert [(row.left_value, row.right_value) for row in harness.take()] == [("l1", "r1"), ("l2", "r2")]
        harness.end_of_input()
        assert [(row.left_value, row.right_value) for row in harness.take()] == [(None, "r3")]
        assert harness.state_keys("lefts") == harness.state_keys("rights") == []

    def test_a_row_that_waited_in_vain_goes_alone(self):
        harness = self.harness()
        harness.row("left", ("k", "l", at(0)))
        harness.watermark(at(10))
        assert [tuple(row)[2:] for row in harness.take()] == [("l", None, at(10))]
        harness.row("right", ("k", "r", at(11)))
        assert harness.take() == []

    def test_a_later_row_gives_up_no_earlier_one_before_the_watermark(self):
        """Rows of two tables may come in any order: those of one table before those of the other, for example."""
        harness = self.harness()
        for value, minute in (("l1", 0), ("l2", 30)):
            harness.row("left", ("k", value, at(minute)))
        for value, minute in (("r1", 5), ("r2", 50), ("r3", 21)):
            harness.row("right", ("k", value, at(minute)))
        assert [(row.left_value, row.right_value) for row in harness.take()] == [("l1", "r1"), ("l2", "r3")]
        harness.end_of_input()
        assert [(row.left_value, row.right_value) for row in harness.take()] == [(None, "r2")]

    def test_held_rows_of_both_tables_are_joined_in_the_order_of_their_times(self):
        harness = self.harness(order_by="ts")
        for side, value, minute in (("left", "l2", 30), ("left", "l1", 0), ("right", "r2", 50), ("right", "r1", 5)):
            harness.row(side, ("k", value, at(minute)))
        assert harness.take() == []
        harness.end_of_input()
        found = [(row.left_value, row.right_value) for row in harness.take()]
        assert found == [("l1", "r1"), ("l2", None), (None, "r2")]

    def test_of_several_rows_the_earliest_finds_its_partner(self):
        harness = self.harness()
        for value, minute in (("l2", 2), ("l1", 1), ("l3", 2)):
            harness.row("left", ("k", value, at(minute)))
        for value in ("r1", "r2", "r3"):
            harness.row("right", ("k", value, at(3)))
        assert [row.left_value for row in harness.take()] == ["l1", "l2", "l3"]

    @given(
        st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 5)), max_size=12)
    )  # fmt: skip
    @settings(max_examples=50)
    def test_no_row_is_lost_however_rows_arrive(self, steps):
        """Each step is a side, a time, and how far the watermark advances after it. A row is emitted when it is due."""
        harness, watermark, waiting = self.harness(), 0, {}
        for number, (is_left, minute, ahead) in enumerate(steps):
            harness.row("left" if is_left else "right", ("k", str(number), at(minute)))
            waiting[str(number)] = minute
            watermark += ahead
            harness.watermark(at(watermark))
            for row in harness.take():
                for value in (row.left_value, row.right_value):
                    if value is not None:
                        del waiting[value]
            # A timer in the past fires when the watermark advances.
            assert not ahead or all(time + 10 > watermark for time in waiting.values())
        harness.end_of_input()
        emitted = [value for row in harness.take() for value in (row.left_value, row.right_value) if value is not None]
        assert sorted(emitted) == sorted(waiting)
        assert harness.state_keys("lefts") == harness.state_keys("rights") == []


class TestFraudRules:
    def harness(self, time="timestamp"):
        payments = table(f"card string, amount double, time {time}", partition_by="card")
        return ProcessTableHarness(
            FraudRules, {"payments": payments, "rule": "name string, at_least int, total double, seconds double"}
        )

    def test_payments_that_break_a_rule_together_alert(self):
        harness = self.harness()
        harness.row("rule", ("burst", 3, 0.0, 120.0))
        for minute in (0, 1, 2, 9):
            harness.row("payments", ("c", 5.0, at(minute)))
        assert harness.take() == [("c", "burst", 3, 15.0)]

    def test_times_without_a_zone_are_taken(self):
        harness = self.harness("timestamp_ntz")
        harness.row("rule", ("burst", 2, 0.0, 120.0))
        for minute in (0, 1):
            harness.row("payments", ("c", 5.0, at(minute).replace(tzinfo=None)))
        assert harness.take() == [("c", "burst", 2, 10.0)]

    def test_rules_can_be_replaced_and_dropped(self):
        harness = self.harness()
        harness.row("rule", ("large", 1, 100.0, 0.0))
        harness.row("rule", ("large", 1, 10.0, 0.0))
        harness.row("payments", ("c", 50.0, at(0)))
        assert harness.take() == [("c", "large", 1, 50.0)]
        harness.row("rule", ("large", None, None, None))
        harness.row("payments", ("c", 500.0, at(1)))
        assert harness.take() == []


class TestDeduplicate:
    def test_the_first_row_of_a_key_stays_as_it_is(self):
        harness = ProcessTableHarness(Deduplicate, {"input": table("id int, v string", partition_by="id")})
        for row in ((1, "a"), (2, "b"), (1, "c")):
            harness.row("input", row)
        assert harness.take() == [(1, "a"), (2, "b")]
        assert harness.columns.names == ["id", "v"]

    def test_a_key_is_forgotten_after_a_day(self):
        harness = ProcessTableHarness(Deduplicate, {"input": table("id int, v string", partition_by="id")})
        harness.row("input", (1, "a"))
        harness.advance_clock("23 h")
        harness.row("input", (1, "b"))
        harness.advance_clock("1 h")
        harness.row("input", (1, "c"))
        assert harness.take() == [(1, "a"), (1, "c")]


class TestTrailingMedian:
    @given(st.lists(st.none() | st.floats(-1e6, 1e6), min_size=1, max_size=20), st.integers(1, 6))
    @settings(max_examples=25, deadline=None)
    def test_it_is_the_median_of_the_last_values(self, values, rows):
        readings = table("sensor string, v double", partition_by="sensor")
        harness = ProcessTableHarness(TrailingMedian, {"input": readings}, column="v", rows=rows)
        for value in values:
            harness.row("input", ("s", value))
        for count, row in enumerate(harness.take(), start=1):
            past = [value for value in values[:count] if value is not None][-rows:]
            assert row.median == (statistics.median(past) if past else None)

    def test_it_needs_a_row(self):
        readings = table("sensor string, v double", partition_by="sensor")
        with pytest.raises(ValueError, match="rows is 0"):
            ProcessTableHarness(TrailingMedian, {"input": readings}, column="v", rows=0).row("input", ("s", 1.0))


class TestFunnel:
    def harness(self):
        events = table("user string, step string, ts timestamp", partition_by="user")
        steps = ["view", "cart", "pay"]
        return ProcessTableHarness(Funnel, {"input": events}, on_time="ts", steps=steps, within=10 * MINUTE)

    def told(self, harness):
        return [(row.started, row.made, row.completed) for row in harness.take()]

    def test_steps_count_in_their_order_whatever_comes_between(self):
        harness = self.harness()
        for minute, step in enumerate(("pay", "view", "help", "cart", "view", "pay")):
            harness.row("input", ("Bob", step, at(minute)))
        assert self.told(harness) == [(at(1), 3, True)]
        assert harness.pending_timers() == []

    @pytest.mark.parametrize("watermarks", [True, False])
    def test_an_attempt_ends_with_its_time(self, watermarks):
        harness = self.harness()
        for minute, step in ((0, "view"), (1, "cart"), (12, "pay"), (13, "view")):
            if watermarks:
                harness.watermark(at(minute))
            harness.row("input", ("Bob", step, at(minute)))
        harness.end_of_input()
        assert self.told(harness) == [(at(0), 2, False), (at(13), 1, False)]


class TestSlaAlerts:
    def harness(self, **arguments):
        orders = table("id int, status string, ts timestamp", partition_by="id")
        given = {"begins": "ordered", "ends": "shipped", "within": 10 * MINUTE, **arguments}
        return ProcessTableHarness(SlaAlerts, {"input": orders}, on_time="ts", **given)

    def told(self, harness):
        return [(row.id, row.began, row.due) for row in harness.take()]

    @pytest.mark.parametrize("watermarks", [True, False])
    def test_what_is_not_ended_in_time_alerts_once(self, watermarks):
        harness = self.harness()
        for minute, status in ((0, "ordered"), (4, "packed"), (12, "shipped"), (13, "shipped")):
            if watermarks:
                harness.watermark(at(minute))
            harness.row("input", (1, status, at(minute)))
        harness.end_of_input()
        assert self.told(harness) == [(1, at(0), at(10))]

    def test_the_alert_comes_as_soon_as_the_time_is_over(self):
        harness = self.harness()
        harness.row("input", (1, "ordered", at(0)))
        harness.row("input", (2, "ordered", at(5)))
        harness.watermark(at(10))
        assert self.told(harness) == [(1, at(0), at(10))]
        assert [timer.key for timer in harness.pending_timers()] == [(2,)]

    def test_what_ends_in_time_leaves_nothing(self):
        harness = self.harness()
        harness.row("input", (1, "ordered", at(0)))
        harness.row("input", (1, "shipped", at(10)))
        assert harness.pending_timers() == [] and harness.state_keys("open") == []
        harness.end_of_input()
        assert self.told(harness) == []

    def test_a_second_beginning_changes_nothing_until_the_first_is_over(self):
        harness = self.harness()
        for minute in (0, 5, 20):
            harness.row("input", (1, "ordered", at(minute)))
        harness.end_of_input()
        assert self.told(harness) == [(1, at(0), at(10)), (1, at(20), at(30))]

    def test_an_end_without_a_beginning_and_rows_without_a_time_are_passed_over(self):
        harness = self.harness()
        harness.row("input", (1, "shipped", at(0)))
        harness.row("input", (1, "ordered", None))
        harness.end_of_input()
        assert self.told(harness) == []
