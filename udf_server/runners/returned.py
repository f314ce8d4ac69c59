"""Returned arrays: whether what a vectorized function returned is an array as it promised."""

from typing import Any

import numpy as np
import pyarrow as pa

from remote_udf.errors import ErrorCode
from remote_udf.types import accepts, normalized, spelled
from udf_server.base.failures import describe
from udf_server.base.values import Codec, Failures, encode_rows

__all__ = ["MalformedResult", "WrongResult", "require_length", "returned_array", "validated"]


class WrongResult(Exception):
    """What was returned cannot be used. Another call, for fewer rows, may show which of them is at fault."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class MalformedResult(WrongResult):
    """The result as a whole is not what was promised: no array, another length, buffers that are too short.

    It is reported at once, for all rows of the call. To call again for fewer rows would be wrong: a function that
    returns one value for many rows by mistake returns a plausible value for each row alone.
    """


def returned_array(result: Any, rows: int, codec: Codec) -> tuple[pa.Array, Failures]:
    """The result as an array of the declared type, and the rows whose value does not fit it.

    Arrow arrays, and what pa.array makes one of without looking at each value, are converted where
    that keeps every value; lists are taken value by value. Raises WrongResult.
    """
    type_ = codec.type
    try:
        if isinstance(result, np.ndarray) or hasattr(result, "__arrow_array__") or hasattr(result, "__arrow_c_array__"):
            result = _from_foreign(result)
        if not isinstance(result, (pa.Array, pa.ChunkedArray, list, tuple)):
            raise MalformedResult(
                ErrorCode.RESULT_TYPE,
                f"expected an array of {spelled(type_)} with {rows} values, one per row, got a value of type "
                f"{type(result).__name__}",
            )
        require_length(len(result), rows, "values, one per row")
        if isinstance(result, (list, tuple)):
            return encode_rows(codec, result)
        return _converted(validated(result), codec)
    except WrongResult:
        raise
    except Exception as strange:
        # Whatever Arrow makes of an object that says it is an array.
        why = f"expected an array of {spelled(type_)}: {describe(strange)}"
        raise MalformedResult(ErrorCode.RESULT_TYPE, why) from strange


def require_length(found: int, wanted: int, of: str) -> None:
    """Raises MalformedResult with both lengths; `of` says what was counted."""
    if found != wanted:
        raise MalformedResult(ErrorCode.RESULT_LENGTH, f"expected {wanted} {of}, got {found}")


def validated(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The array in one piece. Raises WrongResult if its buffers do not hold what it claims, however deeply nested.

    Arrow itself trusts lengths and offsets: it would read foreign memory, or end the process.
    """
    try:
        array.validate()
    except pa.ArrowException as error:
        raise MalformedResult(ErrorCode.RESULT_TYPE, f"a malformed array of {spelled(array.type)}: {error}") from error
    try:
        array.validate(full=True)
    except pa.ArrowException as error:
        # Such as text that is not UTF-8: the fault of single rows.
        raise WrongResult(ErrorCode.RESULT_TYPE, f"an invalid array of {spelled(array.type)}: {error}") from error
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _from_foreign(result: Any) -> Any:
    try:
        return pa.array(result)
    except Exception:
        return list(result)


def _converted(array: pa.Array, codec: Codec) -> tuple[pa.Array, Failures]:
    type_ = codec.type
    if array.type == type_:
        return array, {}
    if _keeps_values(array.type, type_):
        try:
            return array.cast(type_), {}
        except pa.ArrowException:
            pass  # some value does not fit; find out which
    try:
        return encode_rows(codec, array.to_pylist())
    except (ValueError, OverflowError) as error:
        raise WrongResult(ErrorCode.RESULT_TYPE, f"expected {spelled(type_)}, got {spelled(array.type)}") from error


def _keeps_values(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a safe cast means the same values: wider, or narrower of the same kind."""
    same_kind = any(
        check(source) and check(target) for check in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    )
    return same_kind or accepts(target, normalized(source)) is not None
