"""The OpenTelemetry implementation of remote_udf.tracing. It is imported only if tracing is enabled."""

import importlib.metadata
import logging
import os
import threading
from collections.abc import Mapping

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from remote_udf.spans import Attribute, Headers, Span
from remote_udf.version import __version__

__all__ = ["flush", "new_span", "prepare"]

log = logging.getLogger(__name__)

_PROPAGATOR = TraceContextTextMapPropagator()
_PROTOCOLS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
_lock = threading.Lock()
_ready: dict[int, trace.Tracer] = {}
"""The tracer of each process, because Spark forks its workers."""


class _OtelSpan:
    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer, self._span = tracer, span
        self._context = trace.set_span_in_context(span, Context())
        self._ended = False

    def event(self, name: str, **attributes: Attribute) -> None:
        if not self._ended:
            self._span.add_event(name, attributes)

    def set(self, **attributes: Attribute) -> None:
        if not self._ended:
            self._span.set_attributes({f"udf.{key}": value for key, value in attributes.items()})

    def child(self, name: str, **attributes: Attribute) -> Span:
        span = self._tracer.start_span(name, self._context)
        child = _OtelSpan(self._tracer, span)
        child.set(**attributes)
        return child

    def headers(self) -> list[tuple[str, str]]:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, self._context)
        return list(carrier.items())

    def make_current(self) -> None:
        otel_context.attach(self._context)

    def end(self, error: str = "") -> None:
        if self._ended:
            return
        if error:
            self._span.set_status(trace.StatusCode.ERROR, error)
        self._ended = True
        self._span.end()


def new_span(
    service: str, name: str, parent: Headers, *, server: bool, attributes: Mapping[str, Attribute]
) -> Span:  # fmt: skip
    """See remote_udf.tracing.start_span."""
    tracer = prepare(service)
    carrier = {key: value for key, value in parent if isinstance(value, str)}
    context = _PROPAGATOR.extract(carrier) if "traceparent" in carrier else None
    kind = trace.SpanKind.SERVER if server else trace.SpanKind.CLIENT
    span = _OtelSpan(tracer, tracer.start_span(name, context, kind))
    span.set(**attributes)
    return span


def flush() -> None:
    """Send the spans that have ended. Blocks."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        provider.force_flush(5_000)


def prepare(service: str) -> trace.Tracer:
    """The tracer of this process, with an exporting provider if none is configured."""
    process = os.getpid()
    with _lock:
        if process not in _ready:
            if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
                # No provider is configured; opentelemetry-instrument, for example, would have done it.
                trace.set_tracer_provider(_provider(service))
            _ready[process] = trace.get_tracer("remote_udf", __version__)
        return _ready[process]


def _provider(service: str) -> TracerProvider:
    """Sampler, limits and delays are the SDK's, which reads OTEL_ variables itself."""
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    provider = TracerProvider(resource=Resource.create({} if named else {"service.name": service}))
    for name in os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(","):
        exporter = _exporter(name.strip().lower())
        if exporter is not None:
            provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _exporter(name: str) -> SpanExporter | None:
    """Find an installed exporter by its name in OTEL_TRACES_EXPORTER."""
    if name == "otlp":
        default = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", default).strip().lower()
        name = _PROTOCOLS.get(protocol, protocol)
    found = importlib.metadata.entry_points(group="opentelemetry_traces_exporter", name=name)
    for entry in found:
        exporter: SpanExporter = entry.load()()
        return exporter
    log.warning("spans are not exported: no exporter of this name is installed", extra={"exporter": name})
    return None
