"""SharedOperators: the calls of process table functions that several statements share by their uid."""

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_client.base.errors import PlanError

__all__ = ["SharedOperators", "readable"]


def readable(kept: DataFrame) -> DataFrame:
    """A view of a persisted DataFrame for use in SQL texts.

    When Spark drops the temporary view of a DataFrame, it also drops the persisted data. A projection does not prevent
    this, but a condition does, and it costs nothing because the optimizer removes it.
    """
    return kept.where(F.lit(True))


class SharedOperators:
    """The calls with a `uid` of several statements: equal calls share an operator."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[object, DataFrame, DataFrame]] = {}

    def results(self) -> list[DataFrame]:
        """The result of each operator, to be persisted while statements read it."""
        return [result for _, result, _ in self._known.values()]

    def frames(self) -> dict[str, DataFrame]:
        """The DataFrame by which statements read the result of each operator, by its uid."""
        return {uid: frame for uid, (_, _, frame) in self._known.items()}

    def frame(self, uid: str, definition: object, make: Callable[[], DataFrame]) -> DataFrame:
        """The result of the call. Raises PlanError if a different call has the same uid."""
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
