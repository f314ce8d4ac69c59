"""Process table functions driven by a script, through the harness for authors: rows, watermarks, clock, snapshots.

A script's `expect_*` steps are noted as they were found; judging compares them. A declaration that must be refused
is a script without steps.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import zip_longest
from typing import Any

from remote_udf.functions import FunctionSpec
from remote_udf.row_kinds import RowKind
from spark_client.base.types import spark_type
from tests.conformance.binding import Bound, is_process
from tests.conformance.cases import Case
from tests.conformance.checking import CaseError, described
from tests.conformance.column_types import parse_type
from tests.conformance.environment import REFUSALS, Environment, limited
from tests.conformance.fields import STEPS
from tests.conformance.flink_tables import changelog_mode, constructed, passed_arguments
from tests.conformance.functions.timer_service import FIRED, service_harness
from tests.conformance.kinds.process_driving import harness_function
from tests.conformance.observation import Emitted, Failure, Observation, Run
from tests.conformance.values import parse_value
from udf_server import ValueView
from udf_server.testing import ProcessTableHarness, table
from udf_server.testing.steps import Kept

__all__ = ["SERVICE", "claims", "observe"]

_CLAUSE = re.compile(r"TABLE\s+(\w+)(?:\s+PARTITION BY\s+(\([^)]*\)|\w+))?", re.IGNORECASE)
_KEYS = re.compile(r"PARTITION BY\s+(\([^)]*\)|\w+)", re.IGNORECASE)
_ON_TIME = re.compile(r"on_time\s*=>\s*DESCRIPTOR\(([^)]*)\)", re.IGNORECASE)
_SCALAR = re.compile(r"-?\d+(?:\.\d+)?|'[^']*'|true|false", re.IGNORECASE)
_COLUMNS = re.compile(r"DESCRIPTOR\s*\(([^)]*)\)", re.IGNORECASE)
_SELECT = re.compile(r"\s*SELECT\b", re.IGNORECASE)
_DECLARED = re.compile(r"\bonly\b|^\s*PARTITION BY\b|declaration|registration", re.IGNORECASE)
SERVICE = "(timer service)"


def claims(case: Case) -> bool:
    """Whether it is a script, or a declaration without a query."""
    process = any(is_process(words) for words in case.functions)
    return bool(case.raw.get("steps")) or (
        process and _DECLARED.search(case.query) is not None and not _SELECT.match(case.query)
    )


def is_service(case: Case) -> bool:
    """Whether it is a script for timers alone, whose function executes the steps."""
    return len(case.functions) == 1 and case.functions[0].name == SERVICE


def observe(case: Case, environment: Environment, bound: Sequence[Bound]) -> Observation:
    """Runs the script once; a refusal ends it."""
    seen = environment.observation(case, bound)
    run = Run("script")
    seen.runs.append(run)
    driver = None
    try:
        driver = _Driver(case, bound, environment)
        with limited():
            driver.run()
    except CaseError:
        raise
    except REFUSALS as error:
        run.failure = Failure(str(error), driver is None, type(error).__name__)
        return seen
    if not case.raw.get("steps"):
        return seen
    driver.tell(run, seen)
    return seen


class _Driver:
    def __init__(self, case: Case, bound: Sequence[Bound], environment: Environment) -> None:
        self._case, self._environment = case, environment
        self._spec = bound[0].spec if bound else None
        self._types = {each.name: [parse_type(type_) for _, type_ in each.columns] for each in case.tables}
        self._service = is_service(case)
        self._key_types = [parse_type("STRING")] if self._service else []
        self._snapshots: dict[str, tuple[object, list[Any], list[Any]]] = {}
        self._found: list[dict[str, Any]] = []
        self._begun: tuple[list[Any], int, list[Any], int] = [], 0, [], 0
        """The output and the fired timers that a snapshot restored, each with how much of the harness's precedes it."""
        self.harness = service_harness(case.raw["steps"]) if self._service else self._made(bound)

    def _made(self, bound: Sequence[Bound]) -> ProcessTableHarness:
        case = self._case
        schemas = {each.name: each for each in case.tables}
        tables = {}
        for argument, name, keys in self._arguments(bound[0].spec):
            columns = ", ".join(f"`{column}` {parse_type(type_).ddl}" for column, type_ in schemas[name].columns)
            mode = changelog_mode(str(self._told(argument, name, "changelog_mode") or ""))
            keys = keys or _keys(self._told(argument, name, "partition_by"))
            types = dict(schemas[name].columns)
            self._key_types = [parse_type(types[key]) for key in keys or () if key in types] or self._key_types
            given = table(columns, partition_by=keys, changelog_mode=mode)
            tables[argument] = replace(given, upsert_key=_keys(self._told(argument, name, "upsert_key")) or ())
        times = _ON_TIME.search(case.query)
        on_time = [each.strip() for each in times[1].split(",")] if times else case.config.get("on_time") or ()
        scalars = {
            name: self._scalar(value)
            for name, value in passed_arguments(case.query, bound[0].spec)
            if name not in (*tables, "on_time", "uid")
        }
        return ProcessTableHarness(harness_function(bound[0]), tables, on_time=on_time, also_batch=False, **scalars)

    def _scalar(self, text: str) -> Any:
        """Returns the value of a scalar argument; Spark evaluates what is no plain literal."""
        if (columns := _COLUMNS.fullmatch(text)) is not None:
            return [each.strip(" `") for each in columns[1].split(",")]
        if _SCALAR.fullmatch(text):
            return _literal(text)
        frame = self._environment.spark.sql(f"SELECT {constructed(text)}")
        return frame.toArrow().column(0)[0].as_py()

    def _told(self, argument: str, name: str, option: str) -> Any:
        """Returns an option of a table: as an option of the case, for the argument or for all, or as a field of it."""
        config, table = self._case.config, next(each for each in self._case.tables if each.name == name)
        return config.get(f"{argument}.{option}", config.get(option, table.raw.get(option)))

    def _arguments(self, spec: FunctionSpec | None = None) -> list[tuple[str, str, list[str] | None]]:
        """Argument, table, keys: from the query; for a declaration, from its tables in order, with their keys."""
        case = self._case
        if _SELECT.match(case.query):
            clauses = [(argument, _CLAUSE.match(text)) for argument, text in passed_arguments(case.query, spec)]
            return [(argument, match[1], _split(match[2] or "")) for argument, match in clauses if match is not None]
        by_key = [each.name for each in spec.process.tables if each.has_set_semantics] if spec and spec.process else []
        # A set-semantics table without keys would be refused for that, and not for the subject of the case.
        keys = [_split(each) for each in _KEYS.findall(case.query)]
        arguments = [
            str(each["name"])
            for each in case.functions[0].raw.get("arguments") or ()
            if "table" in str(each.get("kind"))
        ]
        named = {each.name: each for each in case.tables}
        wanted = [(name, name if name in named else next(iter(named), "")) for name in arguments]
        first = {name: [each.columns[0][0]] if each.columns else None for name, each in named.items()}
        keys += [first[name] if name and argument in by_key else None for argument, name in wanted[len(keys) :]]
        return [(argument, name, each) for (argument, name), each in zip(wanted, keys, strict=False) if name]

    def run(self) -> None:
        steps = self._case.raw.get("steps") or ()
        if not steps and not self._case.tables and _SELECT.match(self._case.query):
            self.harness.call()
        for number, step in enumerate(steps):
            if step["op"] not in STEPS:
                raise CaseError(f"steps[{number}].op", described(step["op"]), f"one of {', '.join(STEPS)}")
            for name in STEPS[step["op"]]:
                if name not in step:
                    raise CaseError(f"steps[{number}].{name}", "nothing", f"a value, which {step['op']} needs")
            self._found.append(getattr(self, f"_{step['op']}")(step) or {})

    def tell(self, run: Run, seen: Observation) -> None:
        """Adds the outcome of the script."""
        seen.found["steps"] = self._found
        if self._service:
            run.rows = [Emitted((each.key[0], each.name, each.time)) for each in self.harness.fired]
            run.columns = [("key", "string"), ("timer_name", "string"), ("time_ms", "bigint")]
        else:
            run.rows = [Emitted(tuple(row), str(row.kind)) for row in self.harness.output]
            run.columns = [(field.name, spark_type(field.type).simpleString()) for field in self.harness.columns]
            run.has_kinds = True
        seen.found["expected_pending_timers"] = sorted(
            ([_shown(each.key), each.name, each.time] for each in self.harness.pending_timers()),
            key=str,
        )

    # Steps. Those that expect something return the actual state, under the same names.

    def _row(self, step: Mapping[str, Any]) -> None:
        if step.get("table") not in self._types:
            if self._case.error is not None and step.get("table"):
                self.harness.row(step["table"], tuple(step["values"]))  # which the case may expect to be refused
            raise CaseError("steps.table", described(step.get("table")), f"one of {', '.join(self._types)}")
        types = self._types[step["table"]]
        values = tuple(parse_value(value, type_) for value, type_ in zip(step["values"], types, strict=True))
        self.harness.row(self._argument(step["table"]), values, RowKind(step.get("kind") or "+I"))

    def _key(self, told: Any) -> tuple[Any, ...]:
        """Returns a key; the case has a list of values if it has several columns."""
        values = told if len(self._key_types) > 1 else [told][: len(self._key_types)]
        return tuple(parse_value(value, type_) for value, type_ in zip(values, self._key_types, strict=True))

    def _argument(self, name: str) -> str:
        """Returns the argument to which a table is passed."""
        return next((argument for argument, each, _ in self._arguments(self._spec) if each == name), name)

    def _watermark(self, step: Mapping[str, Any]) -> None:
        to = step["to"]
        name = step.get("table")
        self.harness.watermark(
            to if isinstance(to, int) else _moment(to), self._argument(name) if name and not self._service else name
        )

    def _advance_clock_ms(self, step: Mapping[str, Any]) -> None:
        self.harness.advance_clock(step["by"])

    def _snapshot(self, step: Mapping[str, Any]) -> None:
        self._snapshots[step["name"]] = self.harness.snapshot(), self._output(), self._fired()

    def _restore(self, step: Mapping[str, Any]) -> None:
        if step["name"] not in self._snapshots:
            raise CaseError("steps.name", described(step["name"]), "the name of a snapshot before it")
        kept, output, fired = self._snapshots[step["name"]]
        self.harness.restore(kept)
        self._begun = output, len(self.harness.output), fired, len(self.harness.fired)

    def _output(self) -> list[Any]:
        return [*self._begun[0], *self.harness.output[self._begun[1] :]]

    def _fired(self) -> list[Any]:
        return [*self._begun[2], *self.harness.fired[self._begun[3] :]]

    def _init_state(self, step: Mapping[str, Any]) -> None:
        value = step["value"]
        before = self.harness.state(step["state"], self._key(step["key"]))
        if hasattr(before, "__dataclass_fields__"):
            for name, each in value.items():
                setattr(before, name, each)
            value = before
        self.harness.set_state(step["state"], value, self._key(step["key"]))

    def _clear_state(self, step: Mapping[str, Any]) -> None:
        self.harness.clear_state(step["state"], self._key(step["key"]))

    def _clear_all_states(self, step: Mapping[str, Any]) -> None:
        self.harness.clear_state(None, self._key(step["key"]))

    def _expect_state(self, step: Mapping[str, Any]) -> dict[str, Any]:
        key, kept = self._key(step["key"]), self.harness.state_keys(step["state"])
        if key not in kept and kept != [()]:  # broadcast state has no key
            return {"value": None}
        found = self.harness.state(step["state"], key)
        if isinstance(found, ValueView):
            found = found.value
        if hasattr(found, "__dataclass_fields__"):
            found = {name: getattr(found, name) for name in found.__dataclass_fields__}
        elif isinstance(step["value"], list):
            found = list(found)
        elif isinstance(step["value"], Mapping):
            found = dict(found)
        return {"value": found}

    def _expect_state_keys(self, step: Mapping[str, Any]) -> dict[str, Any]:
        told = {self._key(each): each for each in step["keys"]}
        found = [told.get(key, _shown(key)) for key in self.harness.state_keys(step["state"])]
        return {"keys": _in_order(step["keys"], found)}

    def _expect_pending_timers(self, step: Mapping[str, Any]) -> dict[str, Any]:
        left, timers = self.harness.pending_timers(), []
        for told in step["timers"]:  # in any order
            same = next((each for each in left if _timer(told, each).items() <= told.items()), None)
            if same is not None:
                left.remove(same)
                timers.append(_timer(told, same))
        return {"timers": timers + [_timer({}, each) for each in left]}

    def _expect_global_watermark(self, step: Mapping[str, Any]) -> dict[str, Any]:
        return _watermark(step, self.harness.current_watermark)

    def _expect_table_watermark(self, step: Mapping[str, Any]) -> dict[str, Any]:
        kept, name = self.harness.snapshot(), step["table"]
        assert isinstance(kept, Kept)
        if self._service:
            names = ["table-a", "table-b"]
        else:
            assert self._spec is not None and self._spec.process is not None
            names, name = [each.name for each in self._spec.process.tables], self._argument(name)
        found = kept.watermarks[names.index(name)]
        return _watermark(step, None if found is None else found // 1000)

    def _expect_fired_timers(self, step: Mapping[str, Any]) -> dict[str, Any]:
        fired = self._fired()
        if not any(isinstance(each, Mapping) for each in step["timers"]):
            return {"timers": [each.name for each in fired]}
        return {"timers": [_timer(told, each) for told, each in zip_longest(step["timers"], fired) if each is not None]}

    def _clear_fired_timers(self, step: Mapping[str, Any]) -> None:
        self._begun = *self._begun[:2], [], len(self.harness.fired)

    def _expect_output(self, step: Mapping[str, Any]) -> dict[str, Any]:
        rows = self._output()
        if not any(isinstance(each, Mapping) for each in step["rows"]):
            return {"rows": [list(row) for row in rows]}
        return {"rows": [{"kind": str(row.kind), "values": list(row), "row": list(row)} for row in rows]}

    def _clear_output(self, step: Mapping[str, Any]) -> None:
        self._begun = [], len(self.harness.output), *self._begun[2:]

    def _end_of_input(self, step: Mapping[str, Any]) -> None:
        self.harness.end_of_input()

    # Steps of the timer service, where rows are commands.

    def _register_timer(self, step: Mapping[str, Any]) -> None:
        self.harness.row("table-a", (step["key"], "register", step["name"], step["time_ms"]))

    def _clear_timer(self, step: Mapping[str, Any]) -> None:
        self.harness.row("table-a", (step["key"], "clear", step.get("name"), step.get("time_ms")))

    def _clear_all_timers(self, step: Mapping[str, Any]) -> None:
        self.harness.row("table-a", (step["key"], "clear all", None, None))

    def _on_fire(self, step: Mapping[str, Any]) -> None:
        FIRED[step["timer"]] = step


def _timer(told: Mapping[str, Any] | None, timer: Any) -> dict[str, Any]:
    """Returns a timer with the fields that the step has for it."""
    told = told or {}
    time: Any = timer.time
    if "time" in told:
        time = told["time"] if _milliseconds(told["time"]) == timer.time else f"{timer.time} ms"
    key = {"key": _shown(timer.key)} if "key" in told else {}
    return {"name": timer.name, ("time" if "time" in told else "time_ms"): time, **key}


def _watermark(step: Mapping[str, Any], found: int | None) -> dict[str, Any]:
    """Returns a watermark in milliseconds under the name that the step has for it; as text, if the step has a text."""
    return {
        name: told if isinstance(told, str) and _milliseconds(told) == found else found
        for name, told in step.items() if name not in ("op", "table")
    }  # fmt: skip


def _shown(key: Sequence[Any]) -> Any:
    """Returns a key in the form of the cases."""
    return list(key) if len(key) > 1 else key[0] if key else None


def _in_order(told: Sequence[Any], found: Sequence[Any]) -> list[Any]:
    """Returns the keys found in the order of the case; they have no order of their own."""
    return sorted(found, key=lambda key: (told.index(key) if key in told else len(told), str(key)))


def _split(keys: str) -> list[str] | None:
    return [key.strip() for key in keys.strip("()").split(",")] if keys else None


def _keys(told: Any) -> list[str] | None:
    return _split(told) if isinstance(told, str) else list(told) if told else None


def _literal(text: str) -> Any:
    if text.startswith("'"):
        return text.strip("'")
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return Decimal(text) if "." in text else int(text)


def _moment(text: str) -> Any:
    return parse_value(text, parse_type("TIMESTAMP_LTZ(3)"))


def _milliseconds(text: str) -> int:
    return round(_moment(text).timestamp() * 1000)
