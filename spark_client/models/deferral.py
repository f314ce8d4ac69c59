"""Deferral: the rule by which a call answers rows of which it is confident, and leaves the others to another call."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_client.executor.engine.pieces import Integers
from spark_client.executor.engine.planned_calls import AnswerRule, field_of_struct

__all__ = ["Deferral"]


@dataclass(frozen=True)
class Deferral(AnswerRule):
    """Rows with a value and a confidence from `threshold` to 1 are answered by the earlier call; others are deferred.

    So a row is deferred if the earlier call has failed, or has returned a null, a null in one of the fields, a
    confidence that is too low, NaN, or more than 1.
    """

    value: str
    confidence: str
    """The fields of the struct of the earlier call."""
    threshold: float
    whole: bool = False
    """Whether the answer is the struct, and not its field `value`: the other function returns such a struct as well."""

    def answered(self, values: pa.Array) -> tuple[Integers, pa.Array]:
        value, confidence = (field_of_struct(values, name) for name in (self.value, self.confidence))
        high = pc.and_(pc.greater_equal(confidence, self.threshold), pc.less_equal(confidence, 1.0))
        chosen = pc.and_(pc.fill_null(high, False), pc.is_valid(value)).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(chosen)
        return rows, (values if self.whole else value).take(pa.array(rows))

    def __str__(self) -> str:
        return f"below {self.threshold:.6g}"
