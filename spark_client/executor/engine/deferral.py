"""Deferral: the rule by which a call answers rows of which it is confident, and leaves the others to another call."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_client.executor.engine.pieces import Integers

__all__ = ["Deferral", "field_of_struct"]


@dataclass(frozen=True)
class Deferral:
    """Rows with a value and a confidence from `threshold` to 1 are answered by the earlier call; others are deferred.

    So a row is deferred if the earlier call has failed, or has returned a null, a null in one of the fields, a
    confidence that is too low, NaN, or more than 1.
    """

    call: int
    """The position of the earlier call."""
    value: str
    confidence: str
    """The fields of its struct."""
    threshold: float
    whole: bool = False
    """Whether the answer is the struct, and not its field `value`: the other function returns such a struct as well."""

    def answered(self, values: pa.Array) -> tuple[Integers, pa.Array]:
        """The indexes of the rows that the earlier call answers, and the answers."""
        value, confidence = (field_of_struct(values, name) for name in (self.value, self.confidence))
        high = pc.and_(pc.greater_equal(confidence, self.threshold), pc.less_equal(confidence, 1.0))
        chosen = pc.and_(pc.fill_null(high, False), pc.is_valid(value)).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(chosen)
        return rows, (values if self.whole else value).take(pa.array(rows))


def field_of_struct(values: pa.Array, name: str) -> pa.Array:
    """A field of structs; null for those that are null."""
    return pc.struct_field(values, [values.type.get_field_index(name)])
