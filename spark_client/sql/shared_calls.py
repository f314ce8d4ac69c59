"""Shared calls: calls of process table functions that several statements have in common, by their uid."""

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_client.base.errors import PlanError

__all__ = ["SharedCalls", "readable"]


def readable(kept: DataFrame) -> DataFrame:
    """A DataFrame for texts, when `kept` is one that is persisted.

    Spark drops what is kept of a DataFrame with the view that stands for it in a text, which also a projection does
    not prevent; the condition costs nothing, as the optimizer removes it.
    """
    return kept.where(F.lit(True))


class SharedCalls:
    """Calls with a `uid` of several statements: those that are the same are one operator."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[object, DataFrame, DataFrame]] = {}

    def results(self) -> list[DataFrame]:
        """The result of each operator, to be kept while statements read it."""
        return [result for _, result, _ in self._known.values()]

    def frames(self) -> dict[str, DataFrame]:
        """What statements read of the result of each operator, by its uid."""
        return {uid: frame for uid, (_, _, frame) in self._known.items()}

    def frame(self, uid: str, definition: object, make: Callable[[], DataFrame]) -> DataFrame:
        """The result of the call. Raises PlanError for another call of the same uid."""
        if uid not in self._known:
            result = make()
            self._known[uid] = (definition, result, readable(result))
        known, _, frame = self._known[uid]
        if known != definition:
            raise PlanError(
                f"Duplicate unique identifier {uid!r}: calls of one uid in a statement set are one operator, so they "
                "must be the same; give this one its own uid"
            )
        return frame
