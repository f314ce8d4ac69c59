"""Tools for tests of plugins: they run a function without a server, or make it fail on purpose."""

from udf_server.serving.server import running_server
from udf_server.testing.calls import AppliedResult, RunResult, metric_value
from udf_server.testing.control import FaultInjector, ManualClock
from udf_server.testing.environment import FunctionEnvironment
from udf_server.testing.processing import PendingTimer, ProcessTableHarness
from udf_server.testing.tables import table

__all__ = [
    "AppliedResult",
    "FaultInjector",
    "FunctionEnvironment",
    "ManualClock",
    "PendingTimer",
    "ProcessTableHarness",
    "RunResult",
    "metric_value",
    "running_server",
    "table",
]
