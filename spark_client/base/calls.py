"""What a plan carries to the executors: frozen, picklable, without secrets."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from remote_udf.functions import FunctionSpec
from remote_udf.options import OnError, resolve_aggregate, resolve_scalar
from remote_udf.process_calls import ProcessCall, processed_type
from remote_udf.result_columns import resolved
from remote_udf.segments import AppliedField, applied_type
from spark_client.base.config import ClientConfig

__all__ = ["AggregateCall", "ErrorPolicy", "ProcessTableCall", "ScalarCall"]


@dataclass(frozen=True)
class ErrorPolicy:
    """What happens to rows that fail; see the caller options of `remote_udf.options`."""

    on_error: OnError = OnError.FAIL
    max_errors: int | None = None
    max_error_rate: float | None = None
    dead_letter: str | None = None


@dataclass(frozen=True)
class ScalarCall:
    """One call of a scalar function, as written in a query.

    `options` are those of call and session, canonical. `operation_id` is the same in every task and
    every retry of a task. `arguments` counts the arguments given; None where only Spark knows, as in
    SQL.
    """

    spec: FunctionSpec
    arguments: int | None
    options: Mapping[str, str]
    operation_id: str
    config: ClientConfig
    policy: ErrorPolicy = field(default_factory=ErrorPolicy)

    @property
    def result_type(self) -> pa.DataType:
        """The type of what the server answers per row."""
        return self.spec.result

    @property
    def takes_parts(self) -> bool:
        """Whether the value of a row may come in parts."""
        return False

    @property
    def timeout(self) -> float:
        """Seconds a row may take, as far as this end knows: the server's own settings are not in it."""
        return resolve_scalar(self.spec.options, self.options).timeout


@dataclass(frozen=True)
class AggregateCall(ScalarCall):
    """One call of an aggregate function. Its rows are segments; `applied` says what is wanted of each."""

    applied: tuple[AppliedField, ...] = ()

    @property
    def result_type(self) -> pa.DataType:
        """A struct of what is wanted."""
        return applied_type(self.spec, self.applied)

    @property
    def applied_type(self) -> pa.DataType:
        """The type of the last field that is wanted."""
        struct = self.result_type
        return struct[struct.num_fields - 1].type

    @property
    def timeout(self) -> float:
        """Seconds a bundle may take, as far as this end knows."""
        return resolve_aggregate(self.spec.options, self.options).timeout


@dataclass(frozen=True)
class ProcessTableCall(ScalarCall):
    """One call of a process table function. Its rows are segments."""

    process: ProcessCall | None = None

    @property
    def result_type(self) -> pa.DataType:
        """State, timers and output of a segment."""
        assert self.process is not None
        return processed_type(resolved(self.spec, self.process), broadcast=self.process.broadcast)

    @property
    def takes_parts(self) -> bool:
        """The output of a segment may be larger than a message, and than memory."""
        return True

    @property
    def timeout(self) -> float:
        """Seconds a bundle may take, as far as this end knows."""
        return resolve_aggregate(self.spec.options, self.options).timeout
