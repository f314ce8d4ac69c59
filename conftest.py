"""The profiles of hypothesis and the order of tests, for the project and its plugins, also where only some are run."""

import functools
import os
from collections.abc import Iterator

import hypothesis
import pytest

from tests.order import few_cases, in_order

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
    """Adds the options that `make test`, `make test ORDER=8` and `make test-all` set."""
    parser.addoption("--order", metavar="SEED", help="shuffle the files, and the tests in them")
    parser.addoption("--cases", type=int, metavar="N", help="run N cases of each test with Spark or processes")
    parser.addoption("--as-jobs", action="store_true", help="in a quarter of the files Spark compiles as in jobs")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Orders tests before pytest, which keeps those together that share a fixture with parameters.

    Chooses cases when pytest has left out the tests that were not asked for.
    """
    if seed := config.getoption("order"):
        items[:] = in_order(items, seed)
    yield
    if most := config.getoption("cases"):
        wanted = set(few_cases(items, most))
        config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
        items[:] = [item for item in items if item in wanted]
