"""Calls as a plan sends them to the executors: objects that are frozen and picklable and contain no secrets."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from remote_udf.arrow import write_schema
from remote_udf.effective_options import AggregateOptions, ScalarOptions, resolve
from remote_udf.functions import FunctionSpec
from remote_udf.options import ErrorPolicy
from remote_udf.process_calls import ProcessCall, processed_type
from remote_udf.result_columns import resolved
from remote_udf.segments import AppliedField, applied_to_proto, applied_type
from remote_udf.v1 import message_pb2 as pb
from remote_udf.version import PROTOCOL_VERSION
from spark_client.base.config import ClientConfig

__all__ = ["GENERATED", "AggregateCall", "ErrorPolicy", "ProcessTableCall", "ScalarCall"]

GENERATED = "__remote_"
"""What the names of columns in plans begin with if users do not know them."""


@dataclass(frozen=True)
class ScalarCall:
    """One call of a scalar function, as written in a query.

    `options` are the canonical options of the call and the session. `operation_id` is the same in every task and
    every retry of a task. `arguments` is the number of arguments; it is None if only Spark knows it, as in SQL.
    """

    spec: FunctionSpec
    arguments: int | None
    options: Mapping[str, str]
    operation_id: str
    config: ClientConfig
    policy: ErrorPolicy = field(default_factory=ErrorPolicy)
    _declared: ClassVar[type[ScalarOptions] | type[AggregateOptions]] = ScalarOptions
    """The options of a function of this kind."""

    @property
    def result_type(self) -> pa.DataType:
        """The type of the value that the server returns for each row."""
        return self.spec.result

    @property
    def takes_parts(self) -> bool:
        """Whether the server may return the value of a row in parts."""
        return False

    def to_proto(self, arguments: pa.Schema, context: pb.CallContext) -> pb.Open:
        """The request of a stream, whose rows have these arguments."""
        return pb.Open(
            protocol_version=PROTOCOL_VERSION,
            function=self.spec.name,
            version=self.spec.version,
            # Estimates have another type than the function's result, and so another fingerprint.
            fingerprint="" if self.config.estimates else self.spec.fingerprint,
            arguments=write_schema(arguments),
            options=self.options,
            context=context,
            takes_parts=self.takes_parts,
            budget=self.config.budget.to_proto() if self.config.budget is not None else None,
            estimate=self.config.estimates,
        )

    @property
    def timeout(self) -> float:
        """The seconds that a row may take by the options known to the client, without the server's own settings.

        If rows are segments, these are the seconds of a bundle.
        """
        return resolve(self._declared, self.spec.options, self.options).timeout


@dataclass(frozen=True)
class AggregateCall(ScalarCall):
    """One call of an aggregate function. Its rows are segments; `applied` lists the fields requested for each."""

    applied: tuple[AppliedField, ...] = ()
    _declared = AggregateOptions

    def to_proto(self, arguments: pa.Schema, context: pb.CallContext) -> pb.Open:
        request = super().to_proto(arguments, context)
        request.applied.extend(applied_to_proto(self.applied))
        return request

    @property
    def result_type(self) -> pa.DataType:
        """A struct of the requested fields."""
        return applied_type(self.spec, self.applied)

    @property
    def applied_type(self) -> pa.DataType:
        """The type of the last requested field."""
        struct = self.result_type
        return struct[struct.num_fields - 1].type


@dataclass(frozen=True)
class ProcessTableCall(ScalarCall):
    """One call of a process table function. Its rows are segments."""

    process: ProcessCall | None = None
    _declared = AggregateOptions

    def to_proto(self, arguments: pa.Schema, context: pb.CallContext) -> pb.Open:
        request = super().to_proto(arguments, context)
        if self.process is not None:
            request.process.CopyFrom(self.process.to_proto())
        return request

    @property
    def result_type(self) -> pa.DataType:
        """A struct of the state, the timers and the output of a segment."""
        assert self.process is not None
        return processed_type(resolved(self.spec, self.process), broadcast=self.process.broadcast)

    @property
    def takes_parts(self) -> bool:
        """Always True: the output of a segment may be larger than a message, and larger than memory."""
        return True
