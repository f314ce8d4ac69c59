"""Applies the caller's error policy to segments that failed. A failed segment of a process function fails the job."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from remote_udf.options import OnError
from remote_udf.outcomes import RowError
from spark_client.base.calls import GENERATED, AggregateCall, ScalarCall
from spark_client.base.errors import FunctionFailed
from spark_client.executor.engine.policy import failure_text, value_text

__all__ = ["check_policy"]

KEY_LIMIT = 200
"""The maximum number of characters of a key in an error message."""


def check_policy(
    call: ScalarCall, errors: Mapping[int, RowError], keys: Sequence[pa.Array], names: Sequence[str], first: int = 0
) -> None:
    """Raises FunctionFailed for the first failed segment if on-error is `fail`.

    `keys` has a row per segment, of which the one at `first` is segment 0 of `errors`.
    """
    if not errors or call.policy.on_error is not OnError.FAIL:
        return
    segment, error = min(errors.items(), key=lambda each: each[0])
    values = [value_text(column[first + segment], KEY_LIMIT) for column in keys]
    shown = ", ".join(f"{_named(name)}{value}" for name, value in zip(names, values, strict=True))
    alone = "of all rows" if isinstance(call, AggregateCall) else "without a key"
    whose = f"of the key ({shown})" if keys else alone
    raise FunctionFailed(f"function {call.spec.key}: a segment {whose} failed: {failure_text(error)}")


def _named(name: str) -> str:
    """What precedes a value; nothing for an expression, which has a generated name in SQL."""
    return "" if name.startswith(GENERATED) else f"{name}="
