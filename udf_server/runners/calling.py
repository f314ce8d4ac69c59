"""Calling passes the arguments of some rows to a function that takes many rows, as arrays or as lists."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from remote_udf.functions import Execution
from remote_udf.raw_texts import read_texts
from udf_server.base.codecs import Codec
from udf_server.base.errors import RowErrors
from udf_server.base.failures import describe
from udf_server.base.functions import Function
from udf_server.base.values import decode_rows
from udf_server.runners.returned import RefusedArgument, Returned, named_by, returned_by

__all__ = ["Calling"]


class Calling:
    """How one function takes its arguments and returns its values. It keeps nothing from call to call."""

    def __init__(self, function: Function, targets: Sequence[pa.DataType]) -> None:
        """`targets` has the type of each argument."""
        self._function = function
        self._codecs: Sequence[Codec] | None = None
        """The codecs of the arguments of a list function; None for a function of arrays."""
        if function.spec.execution is Execution.BATCHED:
            self._codecs = [function.codec_for(*target) for target in enumerate(targets)]

    def arguments(self, columns: Sequence[pa.Array], rows: Sequence[int]) -> list[Any]:
        """The arguments of a call for these rows of the columns. Raises RowErrors for rows without a value."""
        if isinstance(rows, range):
            arrays = [column.slice(rows[0], len(rows)) for column in columns]
        else:
            places = pa.array(rows, pa.int64())
            arrays = [column.take(places) for column in columns]
        refused: dict[int, BaseException] = {}
        if self._codecs is None:
            read = [read_texts(array) for array in arrays]
            for position, (_, unreadable) in enumerate(read):
                for row, text in unreadable.items():
                    place = self._function.place(position, text.path)
                    refused.setdefault(row, RefusedArgument(f"{place}: {text.problem}"))
            taken = [array for array, _ in read]
        else:
            decoded = [decode_rows(codec, array) for codec, array in zip(self._codecs, arrays, strict=True)]
            for position, (_, failures) in enumerate(decoded):
                for row, error in failures.items():
                    refused.setdefault(row, RefusedArgument(f"{self._function.place(position)}: {describe(error)}"))
            taken = [values for values, _ in decoded]
        if refused:
            raise RowErrors(refused)
        return taken

    def returned(self, result: Any, rows: int) -> Returned:
        """The values of a call for this number of rows. Raises WrongResult."""
        return returned_by(result, rows, self._function.result)

    def named(self, error: RowErrors, rows: int, *, called: bool = True) -> Returned:
        """The values and errors of a call that has raised RowErrors. Raises WrongResult."""
        return named_by(error, rows, self._function.result)._replace(called=called)
