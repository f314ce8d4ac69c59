"""Edits: which queries a process still takes after an edit, who asks for a fresh process, and what fails."""

import asyncio
from types import SimpleNamespace

import pytest

from remote_udf.errors import StreamError
from udf_server.streams.entrance import MOST_RUNS, Edits


class Files:
    """Files that the test edits, and a parent that starts fresh processes."""

    def __init__(self, *answers):
        self.changed = False
        self.answers = list(answers)
        self.asked = 0
        self.now = 0.0
        self.edits = Edits(SimpleNamespace(identity="v1", edited=lambda: self.changed), self.replace, self._tick)

    def _tick(self):
        self.now += 1.0
        return self.now

    async def replace(self):
        self.asked += 1
        await asyncio.sleep(0)
        return self.answers.pop(0)

    async def taken(self, run="", session="a"):
        try:
            await self.edits.require_current(session, run)
        except StreamError as error:
            return error.code, error.retryable
        return "taken"


MOVED, FAILED = ("SHUTTING_DOWN", True), ("PLUGIN_FAILED", False)


async def test_a_process_takes_all_until_an_edit_and_then_none():
    files = Files("")
    assert await files.taken("1") == await files.taken() == "taken"
    files.changed = True
    assert await files.taken("2") == MOVED
    files.changed = False
    assert await files.taken("3") == await files.taken() == MOVED
    assert files.asked == 1


async def test_a_query_that_runs_keeps_the_code_with_which_it_began():
    files = Files("")
    assert await files.taken("1") == "taken"
    files.changed = True
    assert await files.taken("1") == "taken"
    assert await files.taken("1", session="another") == MOVED
    assert await files.taken("1") == "taken"
    assert files.asked == 1


async def test_streams_that_come_together_ask_once():
    files = Files("")
    files.changed = True
    assert await asyncio.gather(*(files.taken(str(run)) for run in range(5))) == [MOVED] * 5
    assert files.asked == 1


async def test_what_fails_is_tried_again_by_later_queries_only():
    files = Files("no", "still no", "")
    files.changed = True
    assert await asyncio.gather(*(files.taken(str(run)) for run in range(3))) == [FAILED] * 3
    assert files.asked == 1
    assert await files.taken("4") == FAILED
    assert await files.taken("5") == MOVED
    assert files.asked == 3


async def test_an_edit_that_is_taken_back_needs_no_fresh_process():
    files = Files("no")
    files.changed = True
    assert await files.taken("1") == FAILED
    files.changed = False
    assert await files.taken("2") == "taken"


async def test_the_error_has_the_report_of_the_fresh_process():
    files = Files("plugin 'f.py' cannot be imported: SyntaxError")
    files.changed = True
    with pytest.raises(StreamError, match=r"^PLUGIN_FAILED: after an edit, plugin 'f\.py' cannot be imported: Syntax"):
        await files.edits.require_current("a", "1")


async def test_a_bounded_number_of_queries_is_remembered():
    files = Files("")
    for run in range(MOST_RUNS + 1):
        assert await files.taken(str(run)) == "taken"
    files.edits.replaced()
    assert await files.taken("0") == MOVED
    assert await files.taken(str(MOST_RUNS)) == "taken"
