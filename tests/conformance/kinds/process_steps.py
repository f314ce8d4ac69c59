"""Process table functions driven step by step through the harness for authors: rows, watermarks, clock, snapshots."""

import re
from collections.abc import Mapping
from typing import Any

from remote_udf.errors import RemoteUdfError
from remote_udf.row_kinds import RowKind
from remote_udf.table_arguments import ChangelogMode
from tests.conformance.cases import Case
from tests.conformance.column_types import parse_type
from tests.conformance.compare import difference
from tests.conformance.environment import Environment, FunctionMissing
from tests.conformance.functions.process_tables import NotBuilt, build_process_table, process_name
from tests.conformance.functions.timer_service import FIRED, service_harness
from tests.conformance.gist import missing_words, says
from tests.conformance.report import Result
from tests.conformance.values import parse_value, same
from udf_server.tables.declaration import declare_table
from udf_server.testing import ProcessTableHarness, table

__all__ = ["claims", "run"]

_CLAUSE = re.compile(r"(\w+)\s*=>\s*TABLE\s+(\w+)(?:\s+PARTITION BY\s+(\([^)]*\)|\w+))?", re.IGNORECASE)
_ON_TIME = re.compile(r"on_time\s*=>\s*DESCRIPTOR\(([^)]*)\)", re.IGNORECASE)
_SCALAR = re.compile(r"(\w+)\s*=>\s*(-?\d+|'[^']*'|true|false)", re.IGNORECASE)
SERVICE = "(timer service)"


def claims(case: Case) -> bool:
    """Cases with steps, and those of the harness that show what is declared wrongly."""
    process = any("timers" in words.raw and "state" in words.raw for words in case.functions)
    return process and (bool(case.raw.get("steps")) or case.id.startswith(("harness-", "timers-")))


def run(case: Case, environment: Environment) -> Result:
    """Raises FunctionMissing."""
    if not case.raw.get("steps") and not case.query.upper().startswith("SELECT"):
        return _declaration(case)
    found: Exception | None = None
    try:
        _Driver(case).run()
    except NotBuilt as error:
        raise FunctionMissing(str(error)) from error
    except _Unmet as unmet:
        return Result.failed(str(unmet))
    except (RemoteUdfError, ValueError) as error:
        found = error
    wanted = case.expected.error
    if wanted is None:
        return Result.passed() if found is None else Result.failed(f"{type(found).__name__}: {found}")
    if found is None:
        return Result.failed(f"no error, expected: {wanted}")
    if says(wanted.partition(" (")[0], str(found)):
        return Result.passed()
    return Result.failed(f"error {found}, expected {wanted}; missing {missing_words(wanted, str(found))}")


class _Unmet(AssertionError):
    pass


class _Driver:
    def __init__(self, case: Case) -> None:
        self._case = case
        self._types = {each.name: [parse_type(type_) for _, type_ in each.columns] for each in case.tables}
        self._service = case.functions[0].name == SERVICE
        self._snapshots: dict[str, object] = {}
        self.harness = service_harness(case.raw["steps"]) if self._service else self._made()

    def _made(self) -> ProcessTableHarness:
        case = self._case
        function = build_process_table(case.functions[0], process_name(case))
        tables = {}
        schemas = {each.name: each for each in case.tables}
        for argument, name, keys in _CLAUSE.findall(case.query):
            columns = ", ".join(f"`{column}` {parse_type(type_).ddl}" for column, type_ in schemas[name].columns)
            mode = str(case.config.get(f"{argument}.changelog_mode", ""))
            kinds = re.findall(r"[+-][IUD]", mode)
            tables[argument] = table(
                columns, partition_by=[key.strip() for key in keys.strip("()").split(",")] if keys else None,
                changelog_mode=ChangelogMode.of(*kinds) if kinds else None,
            )  # fmt: skip
        times = _ON_TIME.search(case.query)
        scalars = {name: int(value) for name, value in _SCALAR.findall(case.query) if value.lstrip("-").isdigit()}
        return ProcessTableHarness(
            function, tables, on_time=[each.strip() for each in times[1].split(",")] if times else (), **scalars
        )

    def run(self) -> None:
        steps = self._case.raw.get("steps") or ()
        if not steps and not self._case.tables:
            self.harness.call()
        for number, step in enumerate(steps):
            try:
                getattr(self, f"_{step['op']}")(step)
            except _Unmet as unmet:
                raise _Unmet(f"step {number}, {step['op']}: {unmet}") from None
        self._compare()

    def _compare(self) -> None:
        if self._service:
            expected = list(self._case.expected.raw.get("rows", ()))
            found = [(each.key[0], each.name, each.time) for each in self.harness.fired]
            self._same([list(row["values"]) for row in expected], [list(each) for each in found], "fired timers")
            pending = self._case.raw.get("expected_pending_timers")
            if pending is not None:
                now = [[each.key[0], each.name, each.time] for each in self.harness.pending_timers()]
                if difference(pending, now, ordered=False) is not None:
                    raise _Unmet(f"pending timers {pending}, found {now}")
            return
        rows = self._case.expected.raw.get("rows")
        if rows is None:
            return
        found_rows = [(str(row.kind), *row) for row in self.harness.output]
        wrong = difference(
            [(row["kind"], *row["values"]) for row in rows], found_rows, ordered=self._case.expected.ordered
        )
        if wrong is not None:
            raise _Unmet(wrong)
        names = [name for name, _ in self._case.expected.columns]
        if names and self.harness.columns.names != names:
            raise _Unmet(f"columns {names}, found {self.harness.columns.names}")

    def _same(self, expected: Any, found: Any, what: str) -> None:
        if not same(expected, found):
            raise _Unmet(f"{what} {expected}, found {found}")

    # Steps.

    def _row(self, step: Mapping[str, Any]) -> None:
        types = self._types[step["table"]]
        values = tuple(parse_value(value, type_) for value, type_ in zip(step["values"], types, strict=True))
        self.harness.row(step["table"], values, RowKind(step.get("kind") or "+I"))

    def _watermark(self, step: Mapping[str, Any]) -> None:
        to = step["to"]
        self.harness.watermark(to if isinstance(to, int) else _moment(to), step.get("table"))

    def _advance_clock_ms(self, step: Mapping[str, Any]) -> None:
        self.harness.advance_clock(step["by"])

    def _snapshot(self, step: Mapping[str, Any]) -> None:
        self._snapshots[step["name"]] = self.harness.snapshot()

    def _restore(self, step: Mapping[str, Any]) -> None:
        self.harness.restore(self._snapshots[step["name"]])

    def _init_state(self, step: Mapping[str, Any]) -> None:
        value = step["value"]
        before = self.harness.state(step["state"], step["key"])
        if hasattr(before, "__dataclass_fields__"):
            for name, each in value.items():
                setattr(before, name, each)
            value = before
        self.harness.set_state(step["state"], value, step["key"])

    def _clear_state(self, step: Mapping[str, Any]) -> None:
        self.harness.clear_state(step["state"], step["key"])

    def _clear_all_states(self, step: Mapping[str, Any]) -> None:
        self.harness.clear_state(None, step["key"])

    def _expect_state(self, step: Mapping[str, Any]) -> None:
        if step["value"] is None:
            key = step["key"] if isinstance(step["key"], tuple) else (step["key"],)
            if key in self.harness.state_keys(step["state"]):
                raise _Unmet(f"state of {key} is not empty")
            return
        found = self.harness.state(step["state"], step["key"])
        if hasattr(found, "__dataclass_fields__"):
            found = {name: getattr(found, name) for name in found.__dataclass_fields__}
        elif isinstance(step["value"], list):
            found = list(found)
        else:
            found = dict(found)
        self._same(step["value"], found, "state")

    def _expect_state_keys(self, step: Mapping[str, Any]) -> None:
        found = [key[0] for key in self.harness.state_keys(step["state"])]
        self._same(sorted(step["keys"]), sorted(found), "keys")

    def _expect_pending_timers(self, step: Mapping[str, Any]) -> None:
        expected = [(each["name"], each.get("time_ms") or _milliseconds(each["time"])) for each in step["timers"]]
        found = [(each.name, each.time) for each in self.harness.pending_timers()]
        self._same([list(each) for each in expected], [list(each) for each in found], "pending timers")

    def _expect_fired_timers(self, step: Mapping[str, Any]) -> None:
        self._same(step["timers"], [each.name for each in self.harness.fired], "fired timers")

    # Of the timer service, where rows are commands.

    def _register_timer(self, step: Mapping[str, Any]) -> None:
        self.harness.row("table-a", (step["key"], "register", step["name"], step["time_ms"]))

    def _clear_timer(self, step: Mapping[str, Any]) -> None:
        self.harness.row("table-a", (step["key"], "clear", step.get("name"), step.get("time_ms")))

    def _on_fire(self, step: Mapping[str, Any]) -> None:
        FIRED[step["timer"]] = step


def _moment(text: str) -> Any:
    return parse_value(text, parse_type("TIMESTAMP_LTZ(3)"))


def _milliseconds(text: str) -> int:
    return round(_moment(text).timestamp() * 1000)


def _declaration(case: Case) -> Result:
    """What the harness refuses before anything runs."""
    wanted = str(case.expected.error)
    build = _DECLARED.get(case.id)
    if build is None:
        return Result.not_applicable("a declaration that only Java has")
    try:
        build(case)
    except (RemoteUdfError, ValueError) as error:
        if says(wanted, str(error)):
            return Result.passed()
        return Result.failed(f"error {error}, expected {wanted}")
    return Result.failed(f"no error, expected: {wanted}")


def _upserting(traits: tuple[str, ...], *, key_only: bool = False, partition_by: str | None = "id", **call: Any) -> Any:
    def make(case: Case) -> None:
        import udf_server as udf

        class Sink(udf.ProcessTableFunction):
            returns = "out string"

            def eval(self, ctx, input):
                yield from ()

        hints = {"ctx": udf.ProcessContext, "input": _annotated(traits)}
        Sink.eval.__annotations__ = hints
        mode = ChangelogMode.of("+I", "+U", "-D", key_only_deletes=key_only)
        given = table("id int, v int", partition_by=partition_by, changelog_mode=None if call else mode)
        ProcessTableHarness(Sink, {"input": given}, **call)

    return make


def _annotated(traits: tuple[str, ...]) -> Any:
    from typing import Annotated

    import udf_server as udf

    return Annotated[udf.Row, *(udf.ArgumentTrait[trait] for trait in traits)]


def _passing_updates(case: Case) -> None:
    import udf_server as udf

    class Passing(udf.ProcessTableFunction):
        returns = "out string"
        changelog_mode = ChangelogMode.of("+I", "-U", "+U", "-D")

        def eval(self, ctx, input):
            yield from ()

    Passing.eval.__annotations__ = {"input": _annotated(("SET_SEMANTIC_TABLE", "PASS_COLUMNS_THROUGH"))}
    declare_table(Passing)


def _two_tables(case: Case) -> None:
    import udf_server as udf

    class Two(udf.ProcessTableFunction):
        returns = "out string"

        def eval(self, left, right):
            yield from ()

    Two.eval.__annotations__ = dict.fromkeys(("left", "right"), _annotated(("SET_SEMANTIC_TABLE",)))
    columns = "id int, region string"
    ProcessTableHarness(
        Two, {"left": table(columns, partition_by=["id", "region"]), "right": table(columns, partition_by="id")}
    )


_SET, _UPDATES = "SET_SEMANTIC_TABLE", "SUPPORT_UPDATES"
_DECLARED = {
    "harness-mismatched-key-count": _two_tables,
    "harness-validator-require-full-delete": _upserting((_SET, _UPDATES, "REQUIRE_FULL_DELETE"), key_only=True),
    "harness-validator-no-support-updates": _upserting((_SET,)),
    "harness-validator-upsert-needs-partition": _upserting(("ROW_SEMANTIC_TABLE", _UPDATES), partition_by=None),
    "harness-validator-pass-through-updating-output": _passing_updates,
    "harness-validator-on-time-column-missing": _upserting((_SET,), on_time="missing"),
}
