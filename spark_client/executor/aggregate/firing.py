"""Firing: decides when the window of a key fires on a stream (FLIP-392).

It has no clock and does no I/O: watermark and processing time are arguments, in milliseconds since 1970.

    early fire 1 s, late fire 0 s, lateness 3 s; the window [0 s, 3 s) of a key whose first row came at 0.2 s

    processing time  0.2    1.2    2.2          the first row starts the clock of early fires
    watermark                          2.999          5.999
                      |------ early ------|---- late ----| cleaned up
    fires                   x      x      x  x  x     on time at 2.999, then for every late row
"""

import dataclasses

__all__ = ["EmitOptions", "Firing"]


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
