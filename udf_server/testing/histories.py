"""The rows of each key in a harness, and whether a batch query would emit from them what the steps emitted.

In batch there is no watermark until the last row of a key was processed, and then all its timers fire. A function whose
timer clears state before the next row gives another result there.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from remote_udf.row_kinds import RowKind
from udf_server.process.base import Row
from udf_server.values.values import Key

__all__ = ["Arrived", "Histories"]

Arrived = tuple[int, pa.StructArray, RowKind]
"""The number of a table, a row of it, and the kind of change."""


@dataclass
class _KeySteps:
    """What a key received and emitted."""

    rows: list[Arrived] = field(default_factory=list)
    emitted: list[Row] = field(default_factory=list)
    after_watermark: bool = False
    """Whether a row arrived after a watermark. Otherwise the steps were those of a batch query."""
    compared: int = 0
    """The number of rows that were compared."""


@dataclass
class Histories:
    """The histories of the keys, as long as a batch query could have the same rows in the same order."""

    possible: bool = True
    """False once a step was taken that no batch query has."""
    _keys: dict[Key, _KeySteps] = field(default_factory=dict)

    def copied(self) -> "Histories":
        keys = {
            key: _KeySteps(list(each.rows), list(each.emitted), each.after_watermark, each.compared)
            for key, each in self._keys.items()
        }
        return Histories(self.possible, keys)

    def begin_broadcast(self) -> None:
        """Note a row of a broadcast table. In batch those rows come before all others."""
        self.possible &= not self._keys

    def add(self, key: Key, arrived: Sequence[Arrived], emitted: Sequence[Row], *, after_watermark: bool) -> None:
        history = self._keys.setdefault(key, _KeySteps())
        history.rows += arrived
        history.emitted += emitted
        history.after_watermark |= bool(arrived) and after_watermark

    def compare(self, function: str, batch: Callable[[Key, Sequence[Arrived]], Sequence[Row]], *, ended: bool) -> None:
        """Compare each key with `batch`, which has its rows from a batch query.

        Before the input has ended, a batch query may emit more rows: it has an end.

        Raises:
            AssertionError: A key has other rows in batch.
        """
        for key, history in self._keys.items() if self.possible else ():
            if history.after_watermark and (ended or len(history.rows) > history.compared):
                history.compared = len(history.rows)
                in_batch = batch(key, history.rows)
                more, fewer = _counted(in_batch), _counted(history.emitted)
                if fewer - more or (ended and more - fewer):
                    raise AssertionError(_difference(function, key, history.emitted, in_batch))


def _counted(rows: Sequence[Row]) -> Counter[str]:
    """The rows by their texts: they may have lists in them, and NaN equals NaN."""
    return Counter(f"{row.kind} {tuple(row)}" for row in rows)


def _difference(function: str, key: Key, steps: Sequence[Row], batch: Sequence[Row]) -> str:
    return "\n".join(
        (
            f"function {function}: key {key!r} has other rows in a batch query, where timers fire after its last row",
            *_listed("as a stream", steps),
            *_listed("in batch", batch),
            "Let eval compare the time of a row with that of the timer; if the function is for streams only, pass "
            "also_batch=False to ProcessTableHarness.",
        )
    )


def _listed(title: str, rows: Sequence[Row]) -> list[str]:
    return [f"{title}:{'' if rows else ' no rows'}", *(f"  {row!r}" for row in rows)]
