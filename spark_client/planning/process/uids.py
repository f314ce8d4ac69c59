"""StreamUids: the calls to which a stream was passed, so that two of them do not share a unique identifier."""

import weakref
from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame

from spark_client.base.errors import PlanError

__all__ = ["StreamUids"]


class StreamUids:
    """The calls of one session. A call is forgotten with its result, so a query that is built again may reuse its uid.

    Streams are distinguished as DataFrame objects, because no public API says whether two DataFrames are the same
    stream. If the results of several calls meet in a later call, their uids are compared there.
    """

    def __init__(self) -> None:
        self._results: dict[tuple[int, str], tuple[weakref.ref[DataFrame], weakref.ref[DataFrame], object]] = {}

    def result(
        self, function: str, streams: Sequence[DataFrame], uid: str, definition: object, make: Callable[[], DataFrame]
    ) -> DataFrame:
        """The result of a call. Equal calls with one uid share it. Raises PlanError if calls with one uid differ."""
        for stream in streams:
            found = self._known(stream, uid)
            if found is None:
                continue
            if found[1] == definition:
                return found[0]
            raise PlanError(
                f"function {function}: Duplicate unique identifier {uid!r}: another call on the same stream has it, "
                "too. Give each call its own, such as uid='second'"
            )
        result = make()
        for stream in streams:
            self._results[(id(stream), uid)] = (weakref.ref(stream), weakref.ref(result), definition)
        return result

    def _known(self, stream: DataFrame, uid: str) -> tuple[DataFrame, object] | None:
        """The result and the definition of a call that still exists. Entries of other calls are removed."""
        for key, (known, made, _) in list(self._results.items()):
            if known() is None or made() is None:
                del self._results[key]
        found = self._results.get((id(stream), uid))
        if found is None:
            return None
        result = found[1]()
        return None if result is None else (result, found[2])
