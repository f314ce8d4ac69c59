"""Structured logs on standard error: an event and its fields, as text or as one JSON object per line.

Code logs with the standard library (`log.info("stream ended", extra={...})`), so that the logs of plugins
are included. structlog renders them.
"""

import logging
import sys

import structlog

__all__ = ["configure_logging"]


def configure_logging(level: str, style: str) -> None:
    """Render every log record of the process with structlog. `style` is text or json."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    if style == "json":
        renderer: structlog.typing.Processor = structlog.processors.JSONRenderer(default=str)
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # The audit log is written at every log level.
    logging.getLogger("udf_server.audit").setLevel(logging.INFO)
