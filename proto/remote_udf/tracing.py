"""Tracing: spans on both ends where the environment asks for them; OpenTelemetry is not even imported where not.

A stream is a span of the executor's, and one of the server's below it; a batch is one below that. Attributes hold names
and numbers, never values of rows.
"""

import importlib.util
import logging
import os
from collections.abc import Mapping
from functools import cache

from remote_udf.spans import NO_SPAN, Attribute, Headers, Span

__all__ = ["flush_spans", "prepare_tracing", "start_span", "tracing_wanted"]

log = logging.getLogger(__name__)


def tracing_wanted(environment: Mapping[str, str]) -> bool:
    """Whether the OTEL_ variables name somewhere to send spans to."""
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or exporter == "none":
        return False
    return bool(
        exporter
        or environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")
        or environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    )


def start_span(service: str, name: str, parent: Headers = (), *, server: bool = False, **attributes: Attribute) -> Span:
    """A span below the one the headers name, or else the current one; NO_SPAN where nothing is traced.

    `service` is what this process calls itself unless OTEL_SERVICE_NAME says otherwise.
    """
    if not _traced(os.getpid()):
        return NO_SPAN
    from remote_udf.open_telemetry import new_span  # noqa: PLC0415 - not imported where nothing is traced

    return new_span(service, name, parent, server=server, attributes=attributes)


def prepare_tracing(service: str) -> None:
    """Imports what the first span would wait for, where anything is traced."""
    if _traced(os.getpid()):
        from remote_udf.open_telemetry import prepare  # noqa: PLC0415 - as above

        prepare(service)


def flush_spans() -> None:
    """Sends what has ended. Blocks, for seconds if nobody takes it."""
    if _traced(os.getpid()):
        from remote_udf.open_telemetry import flush  # noqa: PLC0415 - as above

        flush()


@cache
def _traced(process: int) -> bool:
    """Asked once per process: Spark forks its workers."""
    if not tracing_wanted(os.environ):
        return False
    try:
        installed = importlib.util.find_spec("opentelemetry.sdk") is not None
    except ModuleNotFoundError:
        installed = False
    if not installed:
        # Not an error: the variables may be meant for something else on this machine.
        log.warning("the OTEL_ variables ask for traces, but opentelemetry-sdk is missing: install remote-udf[tracing]")
    return installed
