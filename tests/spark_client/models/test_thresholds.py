"""The threshold of a cascade: bounds against known values, and how often the promise is broken."""

import random

import pytest

from spark_client.models.thresholds import Judged, chosen_threshold, lower_bound, rows_needed


@pytest.mark.parametrize(
    ("successes", "trials", "level", "bound"),
    [
        (0, 10, 0.05, 0.0),
        (59, 59, 0.05, 0.05 ** (1 / 59)),
        (95, 100, 0.05, 0.897748),  # as scipy.stats.beta.ppf(0.05, 95, 6)
        (8, 10, 0.025, 0.443905),  # as binom.test(8, 10) of R
        (99_000, 100_000, 0.005, 0.989155),
    ],
)
def test_the_bound_is_that_of_clopper_and_pearson(successes, trials, level, bound):
    assert lower_bound(successes, trials, level) == pytest.approx(bound, abs=2e-5)


@pytest.mark.parametrize(("target", "level", "rows"), [(0.95, 0.95, 59), (0.9, 0.95, 29), (0.99, 0.9, 230)])
def test_the_rows_needed_are_those_with_which_full_agreement_passes(target, level, rows):
    assert rows_needed(target, level) == rows
    assert lower_bound(rows, rows, 1 - level) >= target > lower_bound(rows - 1, rows - 1, 1 - level)


def test_the_lowest_threshold_that_passes_is_chosen_and_rows_without_an_answer_do_not_count():
    sample = [Judged(place / 1000, place >= 300) for place in range(1000)] + [Judged(None, True)] * 500
    found = chosen_threshold(sample, 0.9, 0.95)
    assert (found.value, found.rows, found.agreeing) == (0.3, 700, 700)
    assert chosen_threshold(sample, 0.75, 0.95).value == 0.2
    assert chosen_threshold([Judged(None, True)] * 500, 0.5, 0.95) is None


def test_equal_confidences_are_one_threshold_that_takes_all_of_its_rows():
    found = chosen_threshold([Judged(1.0, True)] * 59, 0.95, 0.95)
    assert (found.value, found.rows) == (1.0, 59)


@pytest.mark.slow
def test_the_promise_is_broken_no_more_often_than_the_level_allows():
    """The true agreement is known: 1 - (1 - c)^2 at a confidence c, and 1 - (1 - t)^2 / 3 above t on average."""
    rand, target, broken, chosen = random.Random(8), 0.9, 0, 0
    for _ in range(400):
        drawn = [rand.random() for _ in range(300)]
        found = chosen_threshold([Judged(c, rand.random() > (1 - c) ** 2) for c in drawn], target, 0.9)
        if found is not None:
            chosen += 1
            broken += 1 - (1 - found.value) ** 2 / 3 < target
    assert chosen > 200
    assert broken <= 400 * 0.1
