"""Tracing: spans on both ends, if the environment enables them. Otherwise OpenTelemetry is not even imported.

A stream has a span of the executor, with a child span of the server, which has a child span per batch. Attributes hold
names and numbers, never values of rows.
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
    """Whether the OTEL_ variables name a destination for spans."""
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or exporter == "none":
        return False
    return bool(
        exporter
        or environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")
        or environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    )


def start_span(service: str, name: str, parent: Headers = (), *, server: bool = False, **attributes: Attribute) -> Span:
    """Start a child of the span in the headers, or else of the current one; without tracing, return NO_SPAN.

    `service` is the name of this process if OTEL_SERVICE_NAME is not set.
    """
    if not _traced(os.getpid()):
        return NO_SPAN
    from remote_udf.open_telemetry import new_span  # noqa: PLC0415 - not imported where nothing is traced

    return new_span(service, name, parent, server=server, attributes=attributes)


def prepare_tracing(service: str) -> None:
    """If tracing is enabled, import what the first span would wait for."""
    if _traced(os.getpid()):
        from remote_udf.open_telemetry import prepare  # noqa: PLC0415 - as above

        prepare(service)


def flush_spans() -> None:
    """Send the spans that have ended. Blocks, for seconds if the destination does not respond."""
    if _traced(os.getpid()):
        from remote_udf.open_telemetry import flush  # noqa: PLC0415 - as above

        flush()


@cache
def _traced(process: int) -> bool:
    """Evaluated once per process, because Spark forks its workers."""
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
