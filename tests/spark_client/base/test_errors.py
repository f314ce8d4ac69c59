"""The tree of errors that a job can get: complete, drawn, and divided by the remedy."""

import inspect
import pickle

import pytest

from remote_udf.errors import RemoteUdfError
from spark_client.base import errors

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if cls.__module__ == errors.__name__]


def test_all_is_every_class_in_order():
    assert errors.__all__ == sorted(cls.__name__ for cls in CLASSES)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_is_in_the_drawn_tree_below_the_root_and_says_what_it_means(cls):
    assert issubclass(cls, RemoteUdfError)
    assert f"── {cls.__name__} " in errors.__doc__
    assert cls.__doc__


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_survives_the_way_from_a_worker(cls):
    back = pickle.loads(pickle.dumps(cls("why")))
    assert (type(back), str(back)) == (cls, "why")


@pytest.mark.parametrize(
    ("cls", "standard"),
    [(errors.UnknownFunction, LookupError), (errors.PlanError, ValueError), (errors.DeadLetterFailed, OSError)],
)
def test_errors_are_also_what_python_calls_them(cls, standard):
    assert issubclass(cls, standard)
