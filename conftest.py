"""The profiles of hypothesis and the order of tests, for the project and its plugins, also where only some are run."""

import os

import hypothesis
import pytest

from tests.order import in_order

# Deterministic, so that a failure comes back; REMOTE_UDF_SEED=random looks for new ones. Hypothesis prints the seed.
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.register_profile("random", deadline=None, print_blob=True)
hypothesis.settings.register_profile("unit", derandomize=True, deadline=None, print_blob=True, max_examples=10)
# `make test`; CI, which runs `make test-all`, draws all.
RANDOM = os.environ.get("REMOTE_UDF_SEED") == "random"
hypothesis.settings.register_profile("quick", derandomize=not RANDOM, deadline=None, print_blob=True, max_examples=25)
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
