"""The threshold of a cascade: chosen from a sample by exact binomial tests, and applied to rows.

A threshold is tested with the rows of the sample at or above it, which are a sample of those that the cheap function
would answer. It passes if the number of agreements, or a larger one, would have at most the probability `level` in case
the probability of an agreement were below the target. This is the test behind the bound of Clopper and Pearson (The use
of confidence or fiducial limits, 1934). Several thresholds are tested, so each has a part of the level (Bonferroni).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_client.executor.engine.pieces import Integers
from spark_client.executor.engine.planned_calls import AnswerRule, field_of_struct

__all__ = ["CANDIDATES", "Deferral", "Judged", "Threshold", "chosen_threshold", "lower_bound", "rows_needed"]

CANDIDATES = 10
"""Number of thresholds that are tested at most: those that answer 10 %, 20 % ... of the rows."""


@dataclass(frozen=True)
class Judged:
    """A row of the sample: the confidence of the cheap function, None if it has no answer, and whether both agree."""

    confidence: float | None
    agrees: bool


@dataclass(frozen=True)
class Threshold:
    """A threshold that has passed, and the rows of the sample at or above it."""

    value: float
    rows: int
    agreeing: int
    least_agreement: float
    """The lower bound of the agreement."""


def chosen_threshold(sample: Sequence[Judged], target: float, confidence_level: float) -> Threshold | None:
    """The lowest threshold above which the agreement reaches the target; None if there is none.

    With a probability of `confidence_level`, the agreement above it in what the sample was drawn from is at least
    `target`.
    """
    answered = sorted(((each.confidence, each.agrees) for each in sample if each.confidence is not None), reverse=True)
    if not answered:
        return None
    confidences = [confidence for confidence, _ in answered]
    places = (math.ceil(len(answered) * part / CANDIDATES) - 1 for part in range(1, CANDIDATES + 1))
    # They depend on the confidences and not on the agreement, as tests that are chosen beforehand must.
    candidates = sorted({confidences[place] for place in places})
    level = (1 - confidence_level) / len(candidates)
    for candidate in candidates:
        above = [agrees for confidence, agrees in answered if confidence >= candidate]
        bound = lower_bound(sum(above), len(above), level)
        if bound >= target:
            return Threshold(candidate, len(above), sum(above), bound)
    return None


def lower_bound(successes: int, trials: int, level: float) -> float:
    """The one-sided bound of Clopper and Pearson: a lower probability has at most `level` to give such a result."""
    if successes == 0:
        return 0.0
    failures = np.arange(trials - successes + 1)
    ways = np.array([math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1) for k in failures])
    low, high = 0.0, successes / trials
    for _ in range(60):
        middle = (low + high) / 2
        # The upper tail of the binomial distribution.
        terms = ways + (trials - failures) * math.log(middle) + failures * math.log1p(-middle)
        if np.exp(terms).sum() <= level:
            low = middle
        else:
            high = middle
    return low


def rows_needed(target: float, confidence_level: float) -> int:
    """The number of rows with which a single threshold can pass, if all of them agree."""
    return math.ceil(math.log(1 - confidence_level) / math.log(target))


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
