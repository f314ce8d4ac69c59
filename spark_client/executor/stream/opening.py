"""Opens the streams of this task's calls."""

import pyarrow as pa

from remote_udf.segments import checked_segments
from remote_udf.tracing import start_span
from spark_client.base.calls import AggregateCall, ProcessTableCall, ScalarCall
from spark_client.executor.stream.call_stream import CallStream
from spark_client.executor.stream.task import current_task
from spark_client.executor.stream.transport import transport_for

__all__ = ["open_stream"]


def open_stream(call: ScalarCall, arguments: pa.Schema) -> CallStream:
    """A stream to the call's server. The types of the arguments are checked before anything is sent."""
    if isinstance(call, AggregateCall):
        checked_segments(call.spec, arguments)
    elif not isinstance(call, ProcessTableCall):
        call.spec.check_arguments(arguments.types)
    task = current_task()
    parent = [("traceparent", task.traceparent)] if task.traceparent else []
    span = start_span(
        "remote-udf-client", f"udf.call {call.spec.key}", parent,
        function=call.spec.key, operation_id=call.operation_id, target=call.config.target, job=task.job,
        stage=task.stage, partition=task.partition, task_attempt=task.task_attempt, micro_batch=task.micro_batch,
    )  # fmt: skip
    return CallStream(call, arguments, task, transport_for(call.config, span.headers()), span=span)
