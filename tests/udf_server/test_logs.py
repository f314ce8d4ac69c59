"""Logs: an event and its fields, as text or JSON, without confidential data."""

import json
import logging
import sys

import pytest

import udf_server as udf
from udf_server.serving.logs import configure_logging
from udf_server.testing import FunctionEnvironment


@pytest.fixture
def root():
    """Restores the root logger afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_has_one_object_per_line_with_event_and_fields(root, capsys):
    configure_logging("info", "json")
    logging.getLogger("plugin").info("fetched %s", "it", extra={"function": "f@1", "odd": object})
    logging.getLogger("plugin").debug("not shown")
    [line] = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert (record["event"], record["level"], record["logger"]) == ("fetched it", "info", "plugin")
    assert record["function"] == "f@1"
    assert record["timestamp"].endswith("Z")


def test_an_exception_is_part_of_its_object(root, capsys):
    configure_logging("info", "json")
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("plugin").exception("failed")
    record = json.loads(capsys.readouterr().err)
    assert "ValueError: why" in record["exception"]


def test_text_is_for_people(root, capsys):
    configure_logging("warning", "text")
    logging.getLogger("plugin").warning("slow", extra={"seconds": 5})
    line = capsys.readouterr().err
    assert "slow" in line
    assert "seconds=5" in line


def test_logs_go_to_standard_error_only(root, capsys):
    configure_logging("debug", "json")
    logging.getLogger("plugin").info("hello")
    assert capsys.readouterr().out == ""
    assert root.handlers[0].stream is not sys.stdout


@pytest.mark.parametrize("style", ["json", "text"])
async def test_neither_arguments_nor_values_nor_errors_of_rows_are_logged(root, capsys, style):
    configure_logging("debug", style)

    @udf.scalar
    async def f(card: str) -> str:
        if card.endswith("9"):
            raise ValueError(card)
        return card

    async with FunctionEnvironment() as environment:
        result = await environment.run(f, ["4111-1", "4111-9"])
        assert result.errors.keys() == {1}
    log = capsys.readouterr().err
    assert "stream ended" in log
    assert "4111" not in log
