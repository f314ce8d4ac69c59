"""The fields of a case that say what is done; every other field asserts something, or nobody knows it."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["STEPS", "asserted"]

_GIVEN = re.compile(
    r"id|title|description|notes?|comments?|source|category|tags|kind|mode|functions?|tables|inline_tables|setup|steps"
    r"|query|equivalent_query|query_origin|config|config_variants|watermark_sensitive|model_check\w*"
)
_OPTIONS = re.compile(
    r"parallelism|mode|runtime_mode|notes?|capacity|timeout_ms|watermark|watermark_delay|watermark_emission|end_of_input"
    r"|restore|sink|on_time|(?:\w+\.)?(?:partition_by|upsert_key|changelog_mode)"
    r"|(?:table|execution|pipeline|parallelism|restart-strategy|state|python)\..*"
)
_OF_TABLE = re.compile(
    r"name|kind|columns|rows|events|row_kinds|primary_key|upsert_key|partition_by|view|watermark|time_column|changelog|changelog_mode"
    r"|notes?|derived_from|materialised_rows|restart_after_row"
)
_OF_ROW = re.compile(r"values|row|kind|row_kind|phase|op|ts|notes?|comments?")
STEPS: Mapping[str, tuple[str, ...]] = {
    "row": ("table", "values"), "watermark": ("to",), "advance_clock_ms": ("by",), "snapshot": ("name",),
    "restore": ("name",), "init_state": ("state", "key", "value"), "clear_state": ("state", "key"),
    "clear_all_states": ("key",), "expect_state": ("state", "key", "value"), "expect_state_keys": ("state", "keys"),
    "expect_pending_timers": ("timers",), "expect_fired_timers": ("timers",),
    "register_timer": ("key", "name", "time_ms"), "clear_timer": ("key",), "clear_all_timers": ("key",),
    "on_fire": ("timer",), "expect_global_watermark": (), "expect_table_watermark": ("table",),
    "expect_output": ("rows",), "clear_output": (), "clear_fired_timers": (), "end_of_input": (),
}  # fmt: skip
"""The steps of a script, and the fields that they need."""
_BESIDE_STEPS = {
    "row": ("kind",), "watermark": ("table",), "clear_timer": ("name", "time_ms"), "register_timer": ("table",),
    "on_fire": ("register", "clear_name"),
}  # fmt: skip
_OF_ANY_STEP = ("op", "note", "notes", "comment")


def asserted(raw: Mapping[str, Any], tables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of a case that asserts something, in the shape of the file, with all fields nobody knows."""
    found = {key: value for key, value in raw.items() if not _GIVEN.fullmatch(key)}
    if options := _unknown(raw.get("config") or {}, _OPTIONS):
        found["config"] = options
    if columns := _merged(_of_table(table) for table in tables.values() if isinstance(table, Mapping)):
        found["tables"] = columns
    steps = [_asserted_step(step) for step in raw.get("steps") or ()]
    if any(steps):
        found["steps"] = steps
    return found


def _asserted_step(step: Mapping[str, Any]) -> dict[str, Any]:
    op = str(step.get("op", ""))
    if op.startswith("expect_"):
        return dict(step)
    known = (*_OF_ANY_STEP, *STEPS.get(op, ()), *_BESIDE_STEPS.get(op, ()))
    return {key: value for key, value in step.items() if op in STEPS and key not in known}


def _of_table(table: Mapping[str, Any]) -> dict[str, Any]:
    rows = [*(table.get("rows") or ()), *(table.get("events") or ())]
    inside = _merged(_unknown(row, _OF_ROW) for row in rows if isinstance(row, Mapping))
    return {**_unknown(table, _OF_TABLE), **({"rows": inside} if inside else {})}


def _unknown(given: Mapping[str, Any], known: re.Pattern[str]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if not known.fullmatch(str(key))}


def _merged(each: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: value for one in each for key, value in one.items()}
