"""StreamServices are what the streams of one server share."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType

from udf_server.base.metrics import ServerMetrics
from udf_server.cache.outcome_cache import OutcomeCache
from udf_server.hosting.function_host import FunctionHost
from udf_server.limits.budgets import Budgets
from udf_server.limits.limiter import Limiter
from udf_server.streams.accounting import StreamLimits
from udf_server.streams.admission import Admission
from udf_server.streams.edits import Edits

__all__ = ["StreamServices"]


@dataclass(frozen=True)
class StreamServices:
    """What serves streams: each part is there once per server, or not at all."""

    host: FunctionHost
    metrics: ServerMetrics
    limits: StreamLimits = field(default_factory=StreamLimits)
    admission: Admission = field(default_factory=Admission)
    guards: Mapping[str, Limiter] = field(default_factory=lambda: MappingProxyType({}))
    """By function and version."""
    budgets: Budgets | None = None
    cache: OutcomeCache | None = None
    edits: Edits | None = None
    """Whether the plugins were edited, if the server serves them while they are."""
    clock: Callable[[], float] = time.monotonic
    new_random: Callable[[], Random] = Random
    """Makes what draws the jitter of a stream's retries."""
