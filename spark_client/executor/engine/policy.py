"""Applies the caller's error policy to complete rows or segments."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from remote_udf.errors import ErrorCode, capped
from remote_udf.options import OnError
from remote_udf.outcomes import ErrorBudget, RowError
from spark_client.base.calls import GENERATED, AggregateCall, ErrorPolicy, ScalarCall
from spark_client.base.errors import ErrorBudgetExceeded, FunctionFailed
from spark_client.executor.engine.groups import Completed
from spark_client.executor.engine.pieces import at_rows
from spark_client.executor.engine.planned_calls import PlannedCall

__all__ = [
    "ERROR_TYPE", "PolicyKeeper", "blocking_errors", "check_policy", "error_array", "failure_text", "keep_policies",
]  # fmt: skip

ERROR_TYPE = pa.struct(
    [("code", pa.string()), ("message", pa.string()), ("attempts", pa.int32()), ("retryable", pa.bool_())]
)
"""The type of an error column."""

ARGUMENT_LIMIT = 80
"""Maximum number of characters of one argument in an error."""
KEY_LIMIT = 200
"""The maximum number of characters of a key in an error message."""


def error_array(rows: int, errors: Mapping[int, RowError]) -> pa.Array:
    """An error column, which is null for rows that did not fail."""
    if not errors:
        return pa.nulls(rows, ERROR_TYPE)
    values = [(error.code.value, error.message, error.attempts, error.retryable) for error in errors.values()]
    return at_rows(pa.array(values, ERROR_TYPE), np.fromiter(errors, np.int64, len(errors)), rows)


def blocking_errors(table: pa.Table, columns: Sequence[int]) -> dict[int, RowError]:
    """The errors in these error columns, by row. If a row has several, the first is used."""
    found: dict[int, RowError] = {}
    for index in columns:
        column = table.column(index)
        if column.null_count == len(column):
            continue
        for row, value in enumerate(column.to_pylist()):
            if value is not None:
                error = RowError(ErrorCode(value["code"]), value["message"], value["attempts"], value["retryable"])
                found.setdefault(row, error)
    return dict(sorted(found.items()))


class PolicyKeeper:
    """Checks the outcomes of one call in one task, and fails the task if the policy requires it."""

    def __init__(self, call: ScalarCall, argument_columns: tuple[int, ...]) -> None:
        self._call = call
        self._columns = argument_columns
        self.policy: ErrorPolicy = call.policy
        self._errors = ErrorBudget(call.policy.max_errors, call.policy.max_error_rate)
        self.rows = 0
        self.failed = 0

    def look(self, table: pa.Table, errors: Mapping[int, RowError], removed: int = 0) -> None:
        """Count the rows. Raises FunctionFailed for the first failed row, or ErrorBudgetExceeded.

        `table` has the columns of the arguments. `removed` rows of it do not count, and are not in `errors`.
        """
        self.rows += table.num_rows - removed
        self.failed += len(errors)
        if not errors:
            return
        row = min(errors)
        if self.policy.on_error is OnError.FAIL:
            raise FunctionFailed(self._described(table, row, errors[row]))
        if self._errors.exceeded(self.failed, self.rows):
            raise ErrorBudgetExceeded(f"{self._budget()}; one of them: {self._described(table, row, errors[row])}")

    def finish(self) -> None:
        """Check the policy after the task's last row. Raises ErrorBudgetExceeded."""
        if self._errors.exceeded(self.failed, self.rows, complete=True):
            raise ErrorBudgetExceeded(self._budget())

    def _budget(self) -> str:
        policy = self.policy
        limits = [f"max-errors {policy.max_errors}"] if policy.max_errors is not None else []
        limits += [f"max-error-rate {policy.max_error_rate:.6g}"] if policy.max_error_rate is not None else []
        return (
            f"function {self._call.spec.key}: {self.failed} of {self.rows} rows of this task failed, "
            f"more than {' and '.join(limits)} allow"
        )

    def _described(self, table: pa.Table, row: int, error: RowError) -> str:
        spec = self._call.spec
        shown = []
        for position, column in enumerate(self._columns):
            shown.append(f"{spec.parameter(position).name}={_value_text(table.column(column)[row], ARGUMENT_LIMIT)}")
        return f"{spec.name}({', '.join(shown)}) of {spec.key} failed: {failure_text(error)}"


def _value_text(value: pa.Scalar, limit: int) -> str:
    """A value in an error, of at most this number of characters."""
    try:
        text = repr(value.as_py())
    except (ValueError, OverflowError):
        text = "(a value Python cannot hold)"
    return text if len(text) <= limit else text[:limit] + "..."


def failure_text(error: RowError) -> str:
    """What an error says after the call that failed: its code, message, attempts and traceback."""
    trace = f"\nRemote traceback:\n{capped(error.traceback)}" if error.traceback else ""
    attempts = f"{error.attempts} attempt{'s' if error.attempts != 1 else ''}"
    return f"{error.code}: {error.message} ({attempts}){trace}"


def keep_policies(calls: Sequence[PlannedCall], keepers: Sequence[PolicyKeeper], completed: Completed) -> None:
    """Show each keeper its outcomes, but not those of rows that became a dead letter of a call among its arguments."""
    width, shown = completed.table.num_columns, completed.table
    removed: list[set[int]] = []
    for index, (planned, keeper, errors) in enumerate(zip(calls, keepers, completed.errors, strict=True)):
        before = set().union(*(removed[inner] for inner in planned.values(width)))
        own = {row: error for row, error in errors.items() if row not in before} if before else errors
        keeper.look(shown, own, len(before))
        removed.append(before.union(errors) if keeper.policy.on_error is OnError.DEAD_LETTER else before)
        shown = shown.append_column(f"value_{index}", completed.values[index])


def check_policy(
    call: ScalarCall, errors: Mapping[int, RowError], keys: Sequence[pa.Array], names: Sequence[str], first: int = 0
) -> None:
    """Raises FunctionFailed for the first failed segment if on-error is `fail`, as it always is for a process function.

    `keys` has a row per segment, of which the one at `first` is segment 0 of `errors`.
    """
    if not errors or call.policy.on_error is not OnError.FAIL:
        return
    segment = min(errors)
    values = [_value_text(column[first + segment], KEY_LIMIT) for column in keys]
    shown = ", ".join(f"{_named(name)}{value}" for name, value in zip(names, values, strict=True))
    alone = "of all rows" if isinstance(call, AggregateCall) else "without a key"
    whose = f"of the key ({shown})" if keys else alone
    raise FunctionFailed(f"function {call.spec.key}: a segment {whose} failed: {failure_text(errors[segment])}")


def _named(name: str) -> str:
    """What precedes a value; nothing for an expression, which has a generated name in SQL."""
    return "" if name.startswith(GENERATED) else f"{name}="
