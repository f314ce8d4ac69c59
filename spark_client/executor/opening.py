"""Opens the streams of this task's calls."""

import pyarrow as pa

from remote_udf.segments import checked_segments
from spark_client.calls import AggregateCall, ProcessTableCall, ScalarCall
from spark_client.executor.stream import CallStream
from spark_client.executor.task import current_task
from spark_client.executor.transport import transport_for

__all__ = ["open_stream"]


def open_stream(call: ScalarCall, arguments: pa.Schema) -> CallStream:
    """A stream to the call's server.

    The arguments' types are checked here first, so that a wrong one is found before anything is sent.
    """
    if isinstance(call, AggregateCall):
        checked_segments(call.spec, arguments)
    elif not isinstance(call, ProcessTableCall):
        call.spec.check_arguments(arguments.types)
    return CallStream(call, arguments, current_task(), transport_for(call.config))
