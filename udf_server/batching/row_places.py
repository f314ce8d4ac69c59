"""RowPlaces says to which streams the rows of a common call belong, and returns their outcomes to them."""

import bisect
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from remote_udf.outcomes import RowError
from remote_udf.raw_texts import alike
from udf_server.base.call_scope import StreamSpending
from udf_server.base.context import CallContext
from udf_server.batching.row_queue import Slice
from udf_server.runners.isolation import Outcomes
from udf_server.runners.selection import Indexes
from udf_server.values.codecs import Codec

__all__ = ["RowPlaces"]


class RowPlaces:
    """The rows of one call, numbered from one slice to the next, of which some have no outcome yet.

    Use it on the server's event loop. Where the function runs, only `columns`, `begin`, `shares` and `context` may be
    used.
    """

    def __init__(self, slices: Sequence[Slice], result: Codec) -> None:
        self.slices = slices
        self._ends = list(itertools.accumulate([piece.end - piece.start for piece in slices]))
        self.rows = self._ends[-1]
        self.outcomes = Outcomes(self.rows, result)
        """The outcomes that are settled and not returned."""
        self._type = result.type
        self._open = np.ones(self.rows, np.bool_)
        """True for the rows whose outcomes were not returned."""
        self.left = self.rows
        """The number of these rows."""

    def wanted(self, rows: Sequence[int]) -> Sequence[int] | None:
        """Those of the rows whose streams have not ended; None if all streams of the call have."""
        alive = [not piece.part.stream.closed for piece in self.slices]
        if not any(alive):
            return None
        if all(alive):
            return rows
        kept = np.repeat(alive, list(map(len, self.slices)))
        return [row for row in rows if kept[row]]

    def begin(self) -> None:
        """Tell the streams that the function is called."""
        for piece in reversed(self.slices):
            piece.part.stream.began(piece)

    def retried(self, rows: Sequence[int], attempts: int, failure: BaseException) -> None:
        """Tell the streams of these rows, in ascending order, that the function is called again."""
        for piece, first in zip(self.slices, [0, *self._ends], strict=False):
            place = bisect.bisect_left(rows, first)
            if place < len(rows) and rows[place] < first + len(piece):
                piece.part.stream.retried(piece.part, piece.start, attempts, failure)

    def expire(self, now: float, began: float, timeout: float, timed_out: Callable[[int, str], RowError]) -> None:
        """Time out the rows whose own timeout has passed. Those whose timeout is that of the call are left to it."""
        first = 0
        for piece, end in zip(self.slices, self._ends, strict=True):
            if piece.part.timeout < timeout and now > began + piece.part.timeout:
                self.fail(first, end, timed_out(1, ""))
            first = end

    def fail(self, first: int, end: int, error: RowError) -> None:
        """Return this error for those rows from `first` to `end` that have no outcome."""
        rows = first + np.flatnonzero(self._open[first:end])
        if len(rows):
            self._return(rows, pa.nulls(len(rows), self._type), dict.fromkeys(rows.tolist(), error))

    def return_settled(self) -> None:
        """Return the outcomes that are settled to their streams."""
        outcomes = self.outcomes
        settled, outcomes.slices = outcomes.slices, {}
        errors, outcomes.errors = outcomes.errors, {}
        if not settled:
            return
        firsts = sorted(settled)
        parts = [settled[first] for first in firsts]
        if len(parts) == 1:
            self._return(range(firsts[0], firsts[0] + len(parts[0])), parts[0], errors)
            return
        # Rows that were settled one by one go to their stream together, as one message.
        rows = np.concatenate([np.arange(first, first + len(part)) for first, part in zip(firsts, parts, strict=True)])
        consecutive = len(rows) == rows[-1] - rows[0] + 1
        self._return(range(int(rows[0]), int(rows[-1]) + 1) if consecutive else rows, pa.concat_arrays(parts), errors)

    def _return(self, rows: "range | Indexes", values: pa.Array, errors: Mapping[int, RowError]) -> None:
        """Return outcomes of rows, in ascending order: of those that have none yet. Errors are by row."""
        chosen = slice(rows.start, rows.stop) if isinstance(rows, range) else rows
        if self.left < self.rows and not (still := self._open[chosen]).all():
            places = np.flatnonzero(still)
            rows, values = np.asarray(rows)[places], values.take(pa.array(places))
        self._open[chosen] = False
        self.left -= len(rows)
        count, begin, first = len(rows), 0, rows.start if isinstance(rows, range) else None
        # A call has rows of several streams. The stream whose outcomes come first accounts for it.
        outcomes = self.outcomes
        # They are negative if a call was counted before it was refused.
        calls, retries = max(outcomes.calls, 0), max(outcomes.retries, 0)
        outcomes.calls -= calls
        outcomes.retries -= retries
        for piece, end in zip(self.slices, self._ends, strict=True):
            if first is None:
                until = bisect.bisect_left(rows, end, begin)
            else:
                until = end - first if end - first < count else count
            if until <= begin:
                continue
            part = piece.part
            if not part.stream.closed:
                shift = begin + piece.end - end
                failed: dict[int, RowError] = {}
                if errors:
                    mine = rows[begin:until] if isinstance(rows, range) else rows[begin:until].tolist()
                    failed = {number: errors[row] for number, row in enumerate(mine) if row in errors}
                if isinstance(rows, range):
                    start = rows.start + shift
                    moved: range | Indexes = range(start, start + until - begin)
                else:
                    moved = rows[begin:until] + (shift - begin)
                part.stream.settle(part, moved, values.slice(begin, until - begin), failed, calls, retries)
                calls = retries = 0
            begin = until
        outcomes.calls += calls
        outcomes.retries += retries

    # The methods below run on the function's threads or its event loop.

    @functools.cached_property
    def columns(self) -> Sequence[pa.Array]:
        """The arguments of all rows."""
        slices = self.slices
        if len(slices) == 1:
            (only,) = slices
            return [column.slice(only.start, len(only)) for column in only.part.columns]
        return [
            pa.concat_arrays(
                alike([each.part.columns[place].slice(each.start, each.end - each.start) for each in slices])
            )
            for place in range(len(slices[0].part.columns))
        ]

    def shares(self, rows: Sequence[int]) -> Mapping[StreamSpending, float]:
        """What share of a call for these rows each stream bears: that of its rows."""
        found: dict[StreamSpending, float] = {}
        places, last = np.searchsorted(self._ends, rows, side="right"), len(self.slices)
        for piece, count in zip(self.slices, np.bincount(places, minlength=last).tolist(), strict=True):
            spending = piece.part.stream.setup.context.spending
            found[spending] = found.get(spending, 0.0) + count / len(rows)
        return {spending: share for spending, share in found.items() if share}

    def context(self, row: int, attempt: int, deadline: float) -> CallContext:
        """The context of the call for one row, as its stream has it."""
        place = bisect.bisect_right(self._ends, row)
        piece = self.slices[place]
        index = piece.end - (self._ends[place] - row)
        return piece.part.stream.row_context(piece.part, index, attempt, deadline)
