"""ErrorBudget is how many rows may fail: of one task, which the client counts, or of a job, which servers count."""

from dataclasses import dataclass

from remote_udf.option_values import percent

__all__ = ["RATE_FROM_ROWS", "ErrorBudget"]

RATE_FROM_ROWS = 100
"""With fewer rows, a share is not meaningful."""


@dataclass(frozen=True)
class ErrorBudget:
    """A number of rows, a share of them, or both."""

    most: float | None = None
    share: float | None = None

    def exceeded(self, failed: int, rows: int, *, complete: bool = False) -> str:
        """What is allowed, such as "3" or "5 %", if more of the rows have failed; otherwise an empty text.

        The share is compared from RATE_FROM_ROWS on, or if the rows are `complete`.
        """
        if self.most is not None and failed > self.most:
            return f"{self.most:,.6g}"
        if self.share is not None and (complete or rows >= RATE_FROM_ROWS) and failed > self.share * rows:
            return percent(self.share)
        return ""
