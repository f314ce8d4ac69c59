"""TaskInfo identifies the Spark task."""

from dataclasses import dataclass

from remote_udf.v1 import message_pb2 as pb

__all__ = ["TaskInfo", "current_task"]


@dataclass(frozen=True)
class TaskInfo:
    """Where the rows come from. `micro_batch` is -1 outside of streaming queries."""

    job: str = ""
    stage: int = -1
    partition: int = 0
    task_attempt: int = 0
    micro_batch: int = -1
    query: str = ""
    """The id of a streaming query, which does not change if it restarts from its checkpoint; empty otherwise."""
    query_run: str = ""
    """The id of this run of a streaming query, which changes with each restart; empty otherwise."""
    run: str = ""
    """The id of the execution of a query, which its tasks share; empty if it is unknown."""
    traceparent: str = ""
    """The span to which the job belongs (W3C), if the driver has set the local property of that name."""

    def to_proto(self, operation_id: str, session: str = "") -> pb.CallContext:
        return pb.CallContext(
            operation_id=operation_id,
            job=self.job,
            stage=self.stage,
            partition=self.partition,
            task_attempt=self.task_attempt,
            micro_batch=self.micro_batch,
            session=session,
            run=self.run,
        )


def current_task() -> TaskInfo:
    """The task that runs in this process; the default TaskInfo outside of Spark."""
    from pyspark import TaskContext  # noqa: PLC0415 - the rest of this package does without pyspark

    context = TaskContext.get()
    if context is None:
        return TaskInfo()
    micro_batch = context.getLocalProperty("streaming.sql.batchId")
    query = context.getLocalProperty("sql.streaming.queryId") or ""
    group = context.getLocalProperty("spark.jobGroup.id") or ""
    return TaskInfo(
        job=context.getLocalProperty("spark.job.description") or group,
        stage=context.stageId(),
        partition=context.partitionId(),
        task_attempt=context.taskAttemptId(),
        micro_batch=int(micro_batch) if micro_batch else -1,
        query=query,
        # Spark uses the id of the run as the group of its jobs.
        query_run=group if query else "",
        run=context.getLocalProperty("spark.sql.execution.id") or "",
        traceparent=context.getLocalProperty("traceparent") or "",
    )
