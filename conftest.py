"""The profiles of hypothesis and the order of tests, for the project and its plugins, also where only some are run."""

import functools
import os

import hypothesis
import pytest

from tests.order import in_order

# How long a test, or the drawing of its values, takes depends on the machine: neither fails it.
profile = functools.partial(
    hypothesis.settings.register_profile, deadline=None, print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)  # fmt: skip
# Deterministic, so that a failure comes back; REMOTE_UDF_SEED=random looks for new ones. Hypothesis prints the seed.
RANDOM = os.environ.get("REMOTE_UDF_SEED") == "random"
profile("fixed", derandomize=True)
profile("random")
profile("unit", derandomize=True, max_examples=10)
# `make test`; CI, which runs `make test-all`, draws all.
profile("quick", derandomize=not RANDOM, max_examples=25)
hypothesis.settings.load_profile("random" if RANDOM else "fixed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds what `make test ORDER=8` and `make test-all` set."""
    parser.addoption("--order", metavar="SEED", help="shuffle the files, and the tests in them")
    parser.addoption("--as-jobs", action="store_true", help="in a quarter of the files Spark compiles as in jobs")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Comes before pytest, which keeps tests together that share a fixture with parameters."""
    if seed := config.getoption("order"):
        items[:] = in_order(items, seed)
