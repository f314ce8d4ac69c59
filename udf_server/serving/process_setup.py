"""Sets up the process of a server: structured logs, the garbage collector and the allocator.

Code logs with the standard library (`log.info("stream ended", extra={...})`), so that the logs of plugins
are included. structlog renders an event and its fields as text, or as one JSON object per line, on standard error.
What Python itself would print beside them is logged too: warnings of libraries, and exceptions that end a thread or
the process.
"""

import contextlib
import ctypes
import gc
import json
import logging
import sys
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType, TracebackType

import structlog
from structlog.typing import EventDict

__all__ = ["configure_logging", "return_memory", "tune_process"]

log = logging.getLogger(__name__)

OURS = ("event", "level", "logger", "timestamp", "exception")
"""What lines have by these names is never a field of `extra`."""


def configure_logging(level: str, style: str, named: Mapping[str, str] = MappingProxyType({})) -> None:
    """Render every log record of the process with structlog. `style` is text or json. Each line has what is `named`."""
    shared: list[structlog.typing.Processor] = [
        _add_fields,
        lambda logger, name, line: {**line, **named},
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    if style == "json":
        renderer: structlog.typing.Processor = structlog.processors.JSONRenderer(serializer=_as_json)
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
    logging.captureWarnings(True)
    sys.excepthook = _process_fails
    threading.excepthook = _thread_fails


_extra = structlog.stdlib.ExtraAdder()


def _add_fields(logger: structlog.typing.WrappedLogger, name: str, line: EventDict) -> EventDict:
    fields = _extra(logger, name, {"_record": line["_record"]})
    del fields["_record"]
    return {**line, **{f"extra_{field}" if field in OURS else field: value for field, value in fields.items()}}


def _as_json(line: EventDict, **_: Callable[..., str]) -> str:
    try:
        return json.dumps(line, default=str, allow_nan=False)
    except (TypeError, ValueError):  # keys, numbers or cycles that JSON does not have
        return json.dumps({name: value if isinstance(value, str) else repr(value) for name, value in line.items()})


def _process_fails(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    log.critical("the process ends with an exception", exc_info=(kind, error, traceback))


def _thread_fails(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_value is not None and not isinstance(failed.exc_value, SystemExit):
        name = failed.thread.name if failed.thread is not None else None
        error = (failed.exc_type, failed.exc_value, failed.exc_traceback)
        log.error("a thread ended with an exception", exc_info=error, extra={"thread_name": name})


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def tune_process() -> None:
    """Change the settings. Call it once, after plugins were loaded and before serving.

    The garbage collector does not traverse objects that exist now again. It collects the youngest generation every
    50,000 allocations instead of 700, because a thousand rows in flight quickly make and free that number. The
    allocator keeps buffers of a batch's size for the next batch instead of mapping and unmapping them each time
    (glibc's mallopt(3); other C libraries do not have it).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    _call_glibc("mallopt", _M_MMAP_THRESHOLD, 64 << 20)
    _call_glibc("mallopt", _M_TRIM_THRESHOLD, 256 << 20)


def return_memory() -> None:
    """Return freed memory to the system, such as that of threads that have ended. It takes some milliseconds."""
    _call_glibc("malloc_trim", 0)


def _call_glibc(function: str, *arguments: int) -> None:
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library does not have it
        getattr(ctypes.CDLL(None), function)(*arguments)
