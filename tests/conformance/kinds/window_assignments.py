"""The windows of given times, and sessions that a further one merges: cases without a query."""

import datetime
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.conformance.binding import Bound
from tests.conformance.cases import Case
from tests.conformance.checking import CaseError, described
from tests.conformance.environment import Environment
from tests.conformance.window_feed import moment

__all__ = ["claims", "found"]

_WORDS = re.compile(r"\b(slide|size|step|offset|gap) (?:of )?(-?[\d.]+) ?(ms|s|min|h|d)[a-z]*\b", re.IGNORECASE)
_FIELD = re.compile(r"(slide|size|step|offset|gap)_(ms|s|min|h|d)[a-z]*")
_UNITS = {"ms": "SECOND", "s": "SECOND", "min": "MINUTE", "h": "HOUR", "d": "DAY"}
_ORDER = {"TUMBLE": ("size",), "HOP": ("slide", "size"), "CUMULATE": ("step", "size"), "SESSION": ("gap",)}
_EPOCH = datetime.datetime(1970, 1, 1)
_MILLISECOND = datetime.timedelta(milliseconds=1)
_EXISTING, _NEW, _MERGED = (
    ("existing", "windows", "sessions", "before"),
    ("new", "added", "window"),
    ("merged", "result"),
)
_MOST_ROWS = 100_000


def claims(case: Case) -> bool:
    """Whether the case lists the windows of times, or sessions that merge."""
    return any(case.expected.get(name) for name in ("assignments", "merges", "merge"))


def found(case: Case, environment: Environment, bound: Sequence[Bound]) -> dict[str, Any]:
    """Computes what the case lists, with the window functions of the project, by its fields."""
    told = {name: value for name, value in case.expected.items() if name in ("merges", "merge")}
    computed: dict[str, Any] = {}
    for name, each in told.items():
        merged = [_merged(case, environment, bound, one) for one in (each if isinstance(each, list) else [each])]
        computed[f"expected.{name}"] = merged if isinstance(each, list) else merged[0]
    if case.expected.get("assignments"):
        computed["expected.assignments"] = _assigned(case, environment, bound)
    return computed


def _assigned(case: Case, environment: Environment, bound: Sequence[Bound]) -> list[dict[str, Any]]:
    """Computes the windows of given times, of each alone or of several whose sessions merge.

    `HOP slide 1 s, size 5 s, offset 0.1 s` says the lengths of all; `offset_minutes` beside a time is that of one.
    """
    function = case.query.split()[0].upper()
    told = {name.lower(): _interval(number, unit.lower()) for name, number, unit in _WORDS.findall(case.query)}
    assigned = []
    for each in case.expected["assignments"]:
        own = {match[1]: _interval(each[key], match[2]) for key in each if (match := _FIELD.fullmatch(key))}
        lengths = {**told, **own}
        names = [*_ORDER[function], *(["offset"] if "offset" in lengths else [])]
        times = each["times"] if "times" in each else [each["time"]]
        rows = _windows(case, environment, bound, function, times, [lengths[name] for name in names])
        assigned.append({"windows": [[_written(at, times[0]) for at in row] for row in rows]})
    return assigned


def _merged(case: Case, environment: Environment, bound: Sequence[Bound], each: Mapping[str, Any]) -> dict[str, Any]:
    """Adds a session to existing ones. Each is made of rows at distances of the length that divides all of them."""
    existing, new = (next((each[name] for name in names if name in each), None) for names in (_EXISTING, _NEW))
    if not isinstance(existing, list) or not new:
        raise CaseError("expected.merges", described(each), "the windows `existing` and the window `new`")
    bounds = [[_milliseconds(at) for at in window] for window in (*existing, new)]
    gap = math.gcd(*(at - bounds[-1][0] for window in bounds for at in window))
    times = [at for start, end in bounds for at in range(start, end, gap)]
    if len(times) > _MOST_ROWS:
        raise CaseError("expected.merges", described(each), f"windows that are made of at most {_MOST_ROWS} parts")
    rows = _windows(case, environment, bound, "SESSION", times, [_interval(gap, "ms")])
    after = [[_milliseconds(at.isoformat()) for at in row] for row in rows]
    target = next(window for window in after if window[0] <= bounds[-1][0] < window[1])
    parts = [window for window in bounds if target[0] <= window[0] < target[1]]
    like = new[0]
    shown = [_shown(target, like) if len(parts) > 1 else None, [_shown(each, like) for each in sorted(parts)]]
    return {
        **dict.fromkeys(_MERGED, shown[0]), "merged_from": shown[1] if len(parts) > 1 else [],
        "after": [_shown(window, like) for window in after],
    }  # fmt: skip


def _windows(
    case: Case, environment: Environment, bound: Sequence[Bound], function: str, times: Sequence[Any],
    lengths: Sequence[str],
) -> list[Any]:  # fmt: skip
    remote = environment.remote(case, bound)
    rows = ", ".join(f"({_literal(time)})" for time in times)
    frame = remote.sql(
        "SELECT DISTINCT window_start, window_end FROM (SELECT window_start, window_end FROM "
        f"{function}(TABLE (SELECT t FROM VALUES {rows} AS given(t)), DESCRIPTOR(t), {', '.join(lengths)})) AS w"
    )
    return sorted(environment.rows(frame))


def _literal(time: str | int) -> str:
    if isinstance(time, int):
        return f"TIMESTAMP_NTZ '{(_EPOCH + time * _MILLISECOND).isoformat()}'"
    return f"TIMESTAMP_LTZ '{time}'" if time.endswith("Z") else f"TIMESTAMP_NTZ '{time}'"


def _interval(number: Any, unit: str) -> str:
    length = float(number) / 1000 if unit == "ms" else number
    return f"INTERVAL '{length}' {_UNITS[unit]}"


def _milliseconds(at: str | int) -> int:
    return at if isinstance(at, int) else (moment(at) - _EPOCH) // _MILLISECOND


def _shown(window: Sequence[int], like: Any) -> list[Any]:
    return [_written(_EPOCH + at * _MILLISECOND, like) for at in window]


def _written(at: Any, like: Any) -> Any:
    """Formats a time as the case writes its times: in milliseconds since 1970, or as text."""
    if isinstance(like, int):
        return (at.replace(tzinfo=None) - _EPOCH) // _MILLISECOND
    text = at.isoformat(timespec="milliseconds")
    assert moment(text) == at
    return str(text.removesuffix(".000"))
