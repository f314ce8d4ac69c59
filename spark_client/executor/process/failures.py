"""A failed segment fails the job, because its missing rows might have changed all later results."""

from collections.abc import Callable, Sequence

import pyarrow as pa

from remote_udf.errors import capped
from spark_client.base.errors import FunctionFailed
from spark_client.executor.engine.groups import Completed
from spark_client.executor.process.plan import ProcessPlan
from spark_client.executor.process.segment_batches import Segments

__all__ = ["require_segments", "require_success"]

KEY_LIMIT = 200
"""Maximum number of characters of a key in an error."""


def require_success(segments: Segments, completed: Completed) -> None:
    """Raise FunctionFailed for the first segment that failed, with its key."""
    require_segments(segments.plan, segments.keys, completed)


def require_segments(plan: ProcessPlan, keys: Callable[[], Sequence[pa.Array]], completed: Completed) -> None:
    """Like `require_success`, for segments with these key columns."""
    errors = completed.errors[0]
    if not errors:
        return
    place, error = min(errors.items(), key=lambda each: each[0])
    names = plan.key_names
    shown = ", ".join(f"{name}={_shown(key[completed.first + place])}" for name, key in zip(names, keys(), strict=True))
    whose = f"of the key ({shown})" if names else "without a key"
    trace = f"\nRemote traceback:\n{capped(error.traceback)}" if error.traceback else ""
    attempts = f"{error.attempts} attempt{'s' if error.attempts != 1 else ''}"
    raise FunctionFailed(
        f"function {plan.call.spec.key}: a segment {whose} failed: {error.code}: {error.message} ({attempts}){trace}"
    )


def _shown(value: pa.Scalar) -> str:
    try:
        text = repr(value.as_py())
    except (ValueError, OverflowError):
        text = "(a value Python cannot hold)"
    return text if len(text) <= KEY_LIMIT else text[:KEY_LIMIT] + "..."
