"""Conversion of exceptions of authors' code to outcomes of rows."""

import os
import traceback
from pathlib import Path

from remote_udf.errors import ErrorCode, capped
from remote_udf.outcomes import RowError
from udf_server.base.errors import BudgetSpent, Failure, RetryableError

__all__ = ["WrongField", "describe", "row_error", "traceback_of"]

_OURS = f"{Path(__file__).parents[1]}{os.sep}"


class WrongField(ValueError):
    """A value, or that of a field, cannot be converted. The message has the names of the fields and the cause."""


def describe(error: BaseException) -> str:
    """Describe an exception as `ValueError: text`, or by its class alone if it has no text.

    The text of a Failure and of a WrongField is complete without the class.
    """
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be shown)"
    name = type(error).__name__
    if isinstance(error, (Failure, WrongField)) and text:
        return text
    return f"{name}: {text}" if text else name


def traceback_of(error: BaseException) -> str:
    """The traceback from the author's first frame on, including causes."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_OURS):
        frame = frame.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, frame or error.__traceback__))
    except Exception:
        # The text of the exception may raise too; that must not prevent the report.
        return f"{type(error).__name__} (its traceback cannot be shown)"


def row_error(error: BaseException, attempts: int, *, retryable: bool, with_traceback: bool = True) -> RowError:
    """The outcome of a row whose last attempt raised `error`, or whose error the function returned.

    `retryable` says whether the options retry it. A RetryableError, such as that of an open circuit, may always succeed
    later, so the cache must not keep it.
    """
    if isinstance(error, BudgetSpent):
        return RowError(ErrorCode.BUDGET_SPENT, str(error), attempts - 1)
    return RowError(
        ErrorCode.FUNCTION_ERROR,
        describe(error),
        attempts,
        retryable or isinstance(error, RetryableError),
        capped(traceback_of(error)) if with_traceback and error.__traceback__ is not None else "",
    )
