"""Chooses the threshold of a cascade from a sample: exact binomial tests of a few thresholds.

A threshold is tested with the rows of the sample at or above it, which are a sample of those that the cheap function
would answer. It passes if the number of agreements, or a larger one, would have at most the probability `level` in case
the probability of an agreement were below the target. This is the test behind the bound of Clopper and Pearson (The use
of confidence or fiducial limits, 1934). Several thresholds are tested, so each has a part of the level (Bonferroni).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["CANDIDATES", "Judged", "Threshold", "chosen_threshold", "lower_bound", "rows_needed"]

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
