"""Logs: an event and its fields, as text or JSON, without confidential data."""

import json
import logging
import sys
import threading
import warnings

import pytest

import udf_server as udf
from udf_server.serving.process_setup import configure_logging
from udf_server.testing import FunctionEnvironment


@pytest.fixture
def root(monkeypatch):
    """Restores afterwards what `configure_logging` changes."""
    for module in (sys, threading):
        monkeypatch.setattr(module, "excepthook", module.excepthook)
    root, audit = logging.getLogger(), logging.getLogger("udf_server.audit")
    handlers, level, of_audit = root.handlers[:], root.level, audit.level
    yield root
    audit.setLevel(of_audit)
    logging.captureWarnings(False)
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


@pytest.mark.filterwarnings("default")
def test_json_has_what_python_would_print_beside_the_log(root, capsys):
    configure_logging("info", "json")
    warnings.warn("an old call", UserWarning, stacklevel=1)
    thread = threading.Thread(target=int, args=("seven",), name="poller")
    thread.start()
    thread.join()
    try:
        raise ValueError("why")
    except ValueError:
        sys.excepthook(*sys.exc_info())
    warned, threaded, ended = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (warned["level"], warned["logger"]) == ("warning", "py.warnings")
    assert "UserWarning: an old call" in warned["event"]
    assert (threaded["event"], threaded["thread_name"]) == ("a thread ended with an exception", "poller")
    assert "invalid literal for int() with base 10: 'seven'" in threaded["exception"]
    assert ended["level"] == "critical" and "ValueError: why" in ended["exception"]


def test_fields_do_not_replace_what_every_line_has(root, capsys):
    configure_logging("info", "json")
    extra = {"event": "order.paid", "level": 3, "logger": "mine", "timestamp": 0, "order": 7}
    logging.getLogger("plugin").info("paid", extra=extra)
    record = json.loads(capsys.readouterr().err)
    assert (record["event"], record["level"], record["logger"]) == ("paid", "info", "plugin")
    assert (record["extra_event"], record["extra_level"], record["order"]) == ("order.paid", 3, 7)


def test_fields_that_json_does_not_have_are_texts(root, capsys):
    configure_logging("info", "json")
    cycle = []
    cycle.append(cycle)
    for odd in (float("inf"), {(1, 2): 3}, cycle):
        logging.getLogger("plugin").info("found", extra={"odd": odd, "order": 7})
    lines = capsys.readouterr().err.splitlines()
    found = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [(line["event"], line["odd"]) for line in found] == [
        ("found", "inf"),
        ("found", "{(1, 2): 3}"),
        ("found", "[[...]]"),
    ]


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
