"""Applies the caller's error policy to the failed segments of bundles."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from remote_udf.errors import capped
from remote_udf.options import OnError
from remote_udf.outcomes import RowError
from spark_client.base.calls import GENERATED, AggregateCall
from spark_client.base.errors import FunctionFailed

__all__ = ["check_policy"]

KEY_LIMIT = 200
"""The maximum number of characters of a key in an error message."""


def check_policy(
    call: AggregateCall, errors: Mapping[int, RowError], keys: Sequence[pa.Array], names: Sequence[str]
) -> None:
    """Raises FunctionFailed for the first failed segment if on-error is `fail`; `keys` has a row per segment."""
    if not errors or call.policy.on_error is not OnError.FAIL:
        return
    segment, error = min(errors.items())
    shown = ", ".join(f"{_named(name)}{_shown(column, segment)}" for name, column in zip(names, keys, strict=True))
    whose = f"of the key ({shown})" if keys else "of all rows"
    trace = f"\nRemote traceback:\n{capped(error.traceback)}" if error.traceback else ""
    attempts = f"{error.attempts} attempt{'s' if error.attempts != 1 else ''}"
    raise FunctionFailed(
        f"function {call.spec.key}: a segment {whose} failed: {error.code}: {error.message} ({attempts}){trace}"
    )


def _named(name: str) -> str:
    """What precedes a value; nothing for an expression, which has a generated name in SQL."""
    return "" if name.startswith(GENERATED) else f"{name}="


def _shown(column: pa.Array, row: int) -> str:
    try:
        text = repr(column[row].as_py())
    except (ValueError, OverflowError):
        text = "(a value Python cannot hold)"
    return text if len(text) <= KEY_LIMIT else text[:KEY_LIMIT] + "..."
