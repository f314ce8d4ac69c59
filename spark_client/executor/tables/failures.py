"""Segments that failed fail the job: a row that is missing might have changed everything after it."""

from collections.abc import Mapping, Sequence
from typing import Any

from remote_udf.errors import capped
from remote_udf.outcomes import RowError
from spark_client.errors import FunctionFailed
from spark_client.executor.tables.plan import ProcessPlan
from spark_client.executor.tables.segments import Segments

__all__ = ["require_segments", "require_success"]

KEY_LIMIT = 200
"""Characters of a key shown in an error."""


def require_success(segments: Segments, errors: Mapping[int, RowError]) -> None:
    """Raises FunctionFailed for the first segment that failed, with its key."""
    if errors:
        require_segments(segments.plan, segments.keys(), errors)


def require_segments(plan: ProcessPlan, keys: Sequence[Any], errors: Mapping[int, RowError]) -> None:
    """The same, for segments with these columns of keys."""
    if not errors:
        return
    place, error = min(errors.items())
    names = plan.key_names
    shown = ", ".join(f"{name}={_shown(key[place])}" for name, key in zip(names, keys, strict=True))
    whose = f"of the key ({shown})" if names else "without a key"
    trace = f"\nRemote traceback:\n{capped(error.traceback)}" if error.traceback else ""
    attempts = f"{error.attempts} attempt{'s' if error.attempts != 1 else ''}"
    raise FunctionFailed(
        f"function {plan.call.spec.key}: a segment {whose} failed: {error.code}: {error.message} ({attempts}){trace}"
    )


def _shown(value: object) -> str:
    try:
        text = repr(value.as_py())  # type: ignore[attr-defined]
    except (ValueError, OverflowError):
        text = "(a value Python cannot hold)"
    return text if len(text) <= KEY_LIMIT else text[:KEY_LIMIT] + "..."
