"""The order and the choice of tests: `make test ORDER=seed` shuffles files and tests, `--cases` leaves cases out."""

import itertools
from collections.abc import Iterator

import pytest

from tests.order import few_cases, in_order


class TestOfAClass:
    def test_that_stays_with_the_next(self): ...

    def test_that_stays_with_the_previous(self): ...


@pytest.fixture
def own(request: pytest.FixtureRequest) -> list[pytest.Item]:
    """The tests of this file, whichever of them run."""

    def within(node: pytest.Collector) -> Iterator[pytest.Item]:
        for each in node.collect():
            yield from [each] if isinstance(each, pytest.Item) else within(each)

    module = request.node.getparent(pytest.Module)
    return list(within(module))


def test_the_order_is_that_of_the_seed(own: list[pytest.Item]):
    orders = [[item.name for item in in_order(own, str(seed))] for seed in range(20)]
    assert len({*map(tuple, orders)}) > 10
    assert [item.name for item in in_order(own[::-1], "7")] == orders[7], "it depends on the order before"


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_fewer_tests_have_the_order_that_all_have(own: list[pytest.Item], seed: str):
    assert in_order(own[::2], seed) == [item for item in in_order(own, seed) if item in own[::2]]


def test_the_tests_of_a_class_stay_together(own: list[pytest.Item]):
    for seed in range(20):
        groups = [each for each, _ in itertools.groupby(in_order(own, str(seed)), lambda item: item.parent)]
        assert sum(isinstance(each, pytest.Class) for each in groups) == 1


def test_the_tests_of_a_file_stay_together(request: pytest.FixtureRequest):
    shuffled = in_order(request.session.items, "8")
    assert sorted(map(str, shuffled)) == sorted(map(str, request.session.items))
    files = [path for path, _ in itertools.groupby(shuffled, lambda item: item.path)]
    assert len(files) == len({*files})


@pytest.mark.slow
@pytest.mark.parametrize("case", range(4))
def test_that_starts_processes(case: int): ...


@pytest.mark.slow
def test_that_starts_processes_and_has_no_cases(): ...


def test_only_tests_with_spark_or_processes_have_fewer_cases(own: list[pytest.Item]):
    left = [item.name for item in own if item not in few_cases(own, 2)]
    assert left == ["test_that_starts_processes[2]", "test_that_starts_processes[3]"]
    assert few_cases(own, 4) == own
