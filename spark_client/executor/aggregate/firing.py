"""Windows of keys on a stream that fire early or late, as Spark's state keeps them between micro-batches (FLIP-392).

The state is an Arrow table with a row per key: the key, net rows, accumulators, the current value, the last emitted
value, and the times of `Firing`. Its metadata describes the query.

`Firing` decides when a window fires. It has no clock and does no I/O: watermark and processing time are arguments, in
milliseconds since 1970.

    early fire 1 s, late fire 0 s, lateness 3 s; the window [0 s, 3 s) of a key whose first row came at 0.2 s

    processing time  0.2    1.2    2.2          the first row starts the clock of early fires
    watermark                          2.999          5.999
                      |------ early ------|---- late ----| cleaned up
    fires                   x      x      x  x  x     on time at 2.999, then for every late row
"""

import dataclasses
import functools
import json
from collections.abc import Sequence

import pyarrow as pa

from remote_udf.types import spelled
from spark_client.base.errors import StateMismatch
from spark_client.executor.aggregate.running import Running
from spark_client.executor.aggregate.segment_columns import AggregateInput
from spark_client.executor.packed_batches import written
from spark_client.executor.stored_state import differs

__all__ = ["EmitOptions", "FirePlan", "FiredWindow", "Firing", "loaded_windows", "saved_windows"]

_DESCRIPTION = b"remote_udf.description"
"""The key in the metadata of the state under which the query that wrote it is described."""


@dataclasses.dataclass(frozen=True)
class EmitOptions:
    """Delays in milliseconds, None if off; `lateness` is 0 without late firing."""

    early: int | None = None
    late: int | None = None
    lateness: int = 0

    @property
    def fires(self) -> bool:
        """Whether windows are also emitted before or after their end."""
        return self.early is not None or self.late is not None

    @property
    def needs_clock(self) -> bool:
        """Whether a window may fire without a row and without progress of the watermark."""
        return bool(self.early) or bool(self.late)


@dataclasses.dataclass
class Firing:
    """The times of one key and window; `early_at` and `late_at` are the next periodic fires, None if not scheduled."""

    early_at: int | None = None
    late_at: int | None = None
    on_time: bool = False
    """Whether the window has fired because the watermark reached its last millisecond."""

    def rows_came(self, options: EmitOptions, last: int, watermark: int, now: int) -> bool:
        """Record rows that are not late; return whether the window, whose last millisecond is `last`, fires at once."""
        if watermark < last:
            if options.early:
                self.early_at = now + options.early if self.early_at is None else self.early_at
            return options.early == 0
        if not self.on_time:
            # The window is new but has already ended, so nothing was emitted at its end.
            self.on_time = True
            return True
        if options.late:
            self.late_at = now + options.late if self.late_at is None else self.late_at
        return options.late == 0

    def time_passed(self, options: EmitOptions, last: int, watermark: int, now: int) -> bool:
        """Whether the window fires because of the watermark or the clock."""
        fires = False
        if self.early_at is not None and self.early_at <= now and options.early:
            self.early_at = _next(self.early_at, options.early, now)
            fires = True
        if self.late_at is not None and self.late_at <= now and options.late:
            self.late_at = _next(self.late_at, options.late, now)
            fires = True
        if not self.on_time and watermark >= last:
            self.on_time = fires = True
        return fires


def _next(due: int, delay: int, now: int) -> int:
    """The first time after `now` that is a multiple of `delay` after `due`."""
    return due + ((now - due) // delay + 1) * delay


@dataclasses.dataclass(frozen=True)
class FirePlan:
    """The aggregates to compute: `remotes` and `runnings` over columns of the rows, returned in the order of `shown`.

    `keys` and `kinds` are positions of columns of the rows. `shown` contains (is remote, number) for each value.
    """

    options: EmitOptions
    remotes: tuple[AggregateInput, ...]
    runnings: tuple[Running, ...]
    shown: tuple[tuple[bool, int], ...]
    keys: tuple[int, ...]
    key_names: tuple[str, ...]
    key_types: tuple[pa.DataType, ...]
    kinds: int | None
    names: tuple[str, ...]
    """The names of the output columns: the kind, the keys, the values."""
    zone: str | None = None
    """The time zone of the windows; None if they do not depend on one."""

    @property
    def value_types(self) -> list[pa.DataType]:
        """The types of the values, in the order of `shown`."""
        return [
            self.remotes[number].call.spec.result if remote else self.runnings[number].result
            for remote, number in self.shown
        ]

    @functools.cached_property
    def description(self) -> dict[str, object]:
        """What the state depends on. It does not depend on versions of functions, nor on delays and lateness."""
        keys = zip(self.key_names, self.key_types, strict=True)
        return {
            "keys": [f"{name} {spelled(type_)}" for name, type_ in keys],
            "values": [self._shown_value(*each) for each in self.shown],
            "changelog": self.kinds is not None, "delays by the clock": self.options.needs_clock,
            "time zone": self.zone,
        }  # fmt: skip

    def _shown_value(self, remote: bool, number: int) -> str:
        if remote:
            spec = self.remotes[number].call.spec
            assert spec.accumulator is not None
            return f"{spec.name} -> {spelled(spec.result)}, accumulator {spelled(spec.accumulator)}"
        running = self.runnings[number]
        argument = "*" if running.argument is None else spelled(running.argument)
        distinct = "DISTINCT " if running.distinct else ""
        return f"{running.function}({distinct}{argument}) -> {spelled(running.result)}"


@dataclasses.dataclass
class FiredWindow:
    """A key's window. Values and accumulators are Python values."""

    count: int
    accumulators: list[object]
    states: list[object]
    values: list[object]
    emitted: list[object] | None
    firing: Firing


def saved_windows(plan: FirePlan, keys: Sequence[pa.Array], windows: Sequence[FiredWindow]) -> bytes:
    """The state: an Arrow table with a row per key."""
    columns: dict[str, pa.Array] = {f"key_{i}": key for i, key in enumerate(keys)}
    columns["count"] = pa.array([window.count for window in windows], pa.int64())
    for name in ("early_at", "late_at"):
        columns[name] = pa.array([getattr(window.firing, name) for window in windows], pa.int64())
    columns["on_time"] = pa.array([window.firing.on_time for window in windows])
    columns["has_emitted"] = pa.array([window.emitted is not None for window in windows])
    for i, source in enumerate(plan.remotes):
        type_ = source.call.spec.accumulator
        columns[f"accumulator_{i}"] = pa.array([window.accumulators[i] for window in windows], type_)
    for i, running in enumerate(plan.runnings):
        columns[f"state_{i}"] = pa.array([window.states[i] for window in windows], running.state)
    for i, type_ in enumerate(plan.value_types):
        columns[f"value_{i}"] = pa.array([window.values[i] for window in windows], type_)
        emitted = [None if window.emitted is None else window.emitted[i] for window in windows]
        columns[f"emitted_{i}"] = pa.array(emitted, type_)
    table = pa.table(columns).replace_schema_metadata({_DESCRIPTION: json.dumps(plan.description)})
    return written(table.to_batches())


def loaded_windows(plan: FirePlan, saved: bytes) -> tuple[list[pa.Array], list[FiredWindow]]:
    """The keys and windows that were saved. Raises StateMismatch if another query saved them."""
    table = pa.ipc.open_stream(saved).read_all()
    if (written := (table.schema.metadata or {}).get(_DESCRIPTION)) is not None:
        _require_fit(plan, json.loads(written))
    keys = [table.column(f"key_{i}").combine_chunks() for i in range(len(plan.keys))]
    parts = {name: table.column(name).to_pylist() for name in table.column_names if not name.startswith("key_")}
    shown = range(len(plan.shown))
    windows = [
        FiredWindow(
            parts["count"][row],
            [parts[f"accumulator_{i}"][row] for i in range(len(plan.remotes))],
            [parts[f"state_{i}"][row] for i in range(len(plan.runnings))],
            [parts[f"value_{i}"][row] for i in shown],
            [parts[f"emitted_{i}"][row] for i in shown] if parts["has_emitted"][row] else None,
            Firing(parts["early_at"][row], parts["late_at"][row], parts["on_time"][row]),
        )
        for row in range(table.num_rows)
    ]
    return keys, windows


def _require_fit(plan: FirePlan, found: dict[str, object]) -> None:
    # States of older versions do not tell the time zone.
    problems = [differs(name, found[name], expected) for name, expected in plan.description.items() if name in found]
    if told := [problem for problem in problems if problem]:
        raise StateMismatch(
            f"windows that fire early or late: their state does not fit the checkpoint: {'; '.join(told)}. Start from "
            "a new checkpoint, or aggregate as before"
        )
