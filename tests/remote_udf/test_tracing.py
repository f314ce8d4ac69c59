"""The conditions for spans, and that tracing does nothing while it is off."""

import subprocess
import sys

import pytest

from remote_udf.spans import NO_SPAN
from remote_udf.tracing import flush_spans, prepare_tracing, start_span, tracing_wanted

WHERE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4317"}


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        (WHERE, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4317"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({**WHERE, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({**WHERE, "OTEL_SDK_DISABLED": "TRUE"}, False),
        ({**WHERE, "OTEL_SDK_DISABLED": "false"}, True),
    ],
)
def test_the_standard_variables_decide(environment, wanted):
    assert tracing_wanted(environment) is wanted


def test_without_them_a_span_does_nothing():
    prepare_tracing("test")
    span = start_span("test", "a", [("traceparent", "00-" + "1" * 32 + "-" + "2" * 16 + "-01")], server=True, x=1)
    assert span is NO_SPAN
    span.event("b", y=2)
    span.set(z=3)
    span.make_current()
    assert span.child("c") is NO_SPAN
    assert span.headers() == []
    span.end()
    flush_spans()


def run(program, **environment):
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip() + done.stderr.strip()


@pytest.mark.slow
def test_neither_end_imports_opentelemetry_where_nothing_is_traced():
    program = "import sys, udf_server.serving.server, spark_client.executor.stream.runtime, remote_udf.tracing as t\n"
    program += "t.prepare_tracing('x'); t.start_span('x', 'y').end()\n"
    program += "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    assert run(program) == "[]"


@pytest.mark.slow
def test_a_missing_package_is_said_once_and_stops_nothing():
    program = "import sys; sys.modules['opentelemetry.sdk'] = None\n"
    program += "import importlib.util; importlib.util.find_spec = lambda name: None\n"
    program += "from remote_udf.tracing import NO_SPAN, start_span\n"
    program += "print([start_span('x', 'y') is NO_SPAN for _ in range(3)])"
    said = run(program, **WHERE)
    assert said.startswith("[True, True, True]")
    assert said.count("install remote-udf[tracing]") == 1


@pytest.mark.slow
def test_an_exporter_that_is_not_installed_is_named():
    program = "import logging; logging.basicConfig(format='%(message)s %(exporter)s')\n"
    program += "from remote_udf.tracing import start_span; start_span('x', 'y').end(); print('went on')"
    said = run(program, OTEL_TRACES_EXPORTER="carrier_pigeon")
    assert "went on" in said
    assert "no exporter of this name is installed carrier_pigeon" in said


@pytest.mark.slow
def test_spans_go_to_the_console_with_the_name_of_the_service():
    program = "from remote_udf.tracing import start_span, flush_spans\n"
    program += (
        "s = start_span('mine', 'outer', a=1); s.child('inner').end(); s.end('broken'); s.end(); s.event('late')\n"
    )
    program += "flush_spans()"
    said = run(program, OTEL_TRACES_EXPORTER="console")
    assert said.count('"name": "') == 2
    assert '"udf.a": 1' in said
    assert '"description": "broken"' in said
    assert '"service.name": "mine"' in said
    assert '"service.name": "other"' in run(program, OTEL_TRACES_EXPORTER="console", OTEL_SERVICE_NAME="other")
