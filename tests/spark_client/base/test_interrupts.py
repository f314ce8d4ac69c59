"""Handlers of interrupts in notebooks; tests/spark/session/test_cancelling.py has Spark's."""

import gc
import weakref
from types import SimpleNamespace

import IPython
import pytest
from IPython.core.events import EventManager, available_events

from spark_client.base.job_tags import cancel_on_interrupt


class Spark:
    """What a session of Spark Connect has for tags."""

    def __init__(self):
        self.tags, self.cancelled = set(), []
        self.addTag, self.removeTag, self.interruptTag = self.tags.add, self.tags.discard, self.cancelled.append


@pytest.fixture
def events(monkeypatch):
    shell = SimpleNamespace()
    shell.events = EventManager(shell, available_events)
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    return shell.events


def test_an_interrupt_cancels_the_queries_of_its_cell_only(events):
    spark = Spark()
    cancel_on_interrupt(spark)
    (first,) = spark.tags
    events.trigger("post_run_cell", SimpleNamespace(error_in_exec=None))
    assert (spark.tags, spark.cancelled) == (set(), [])
    events.trigger("pre_run_cell", None)
    (second,) = spark.tags
    events.trigger("post_run_cell", SimpleNamespace(error_in_exec=KeyboardInterrupt()))
    assert (spark.tags, spark.cancelled) == (set(), [second])
    assert first != second


def test_a_session_that_nothing_else_needs_is_released_with_its_handler(events):
    sessions = [Spark(), Spark()]
    for session in sessions * 2:
        cancel_on_interrupt(session)
    released, kept = weakref.ref(sessions.pop(0)), sessions[0]
    del session
    gc.collect()
    assert released() is None
    events.trigger("post_run_cell", SimpleNamespace(error_in_exec=KeyboardInterrupt()))
    events.trigger("pre_run_cell", None)
    assert len(events.callbacks["pre_run_cell"]) == len(events.callbacks["post_run_cell"]) == 1
    assert len(kept.cancelled) == len(kept.tags) == 1
