"""Model: a remote scalar function with constant arguments and options, under the name that SQL gives it (FLIP-437)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql.types import DataType, StructField, StructType

from remote_udf.functions import FunctionKind, FunctionSpec
from spark_client.base.errors import PlanError, UnknownFunction
from spark_client.base.types import spark_type
from spark_client.sql.rows.functions import SqlFunctions

__all__ = ["Model", "Models", "model_of", "outputs_of", "require_scalar", "type_name"]


@dataclass(frozen=True)
class Model:
    """A function with the arguments that do not depend on the row."""

    name: str
    function: str
    """ "name" or "name@version"."""
    outputs: tuple[str, ...]
    """The columns of a result: one, or one for each field of a struct."""
    constants: Mapping[str, object] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    inputs: tuple[StructField, ...] = ()
    """The columns that it was declared with; empty if it was declared without."""
    comment: str = ""

    def parameters(self, spec: FunctionSpec) -> list[str]:
        """The parameters that get columns, in order."""
        return [each.name for each in spec.parameters if each.name not in self.constants]


class Models(dict[str, Model]):
    """The models of one session, by case-folded name."""


def model_of(functions: SqlFunctions, name: str) -> Model:
    """The model with this name, or the scalar function with this name. Raises PlanError if there is neither."""
    models = functions.session.kept(Models)
    model = models.get(name.casefold())
    if model is not None:
        return model
    try:
        spec = functions.spec(name)
    except UnknownFunction as error:
        known = ", ".join(model.name for model in models.values()) or "none"
        raise PlanError(f"there is no model {name!r}: this session has {known}; as a function, {error}") from None
    require_scalar(spec)
    return Model(name, spec.key, outputs_of(spec, None, name))


def require_scalar(spec: FunctionSpec) -> None:
    """Raises PlanError if a function cannot be a model."""
    if spec.kind is not FunctionKind.SCALAR:
        raise PlanError(f"{spec.key} is a function of kind {spec.kind}; a model is a scalar function")


def outputs_of(spec: FunctionSpec, declared: StructType | None, name: str) -> tuple[str, ...]:
    """The names of the result's columns. Raises PlanError if the declaration has other types than the function."""
    result = spark_type(spec.result)
    fields = result.fields if isinstance(result, StructType) else [StructField(name, result)]
    if declared is None:
        return tuple(each.name for each in fields)
    if [type_name(each.dataType) for each in declared.fields] != [type_name(each.dataType) for each in fields]:
        expected = ", ".join(f"{each.name} {type_name(each.dataType)}" for each in fields)
        found = ", ".join(f"{each.name} {type_name(each.dataType)}" for each in declared.fields)
        raise PlanError(f"OUTPUT is ({found}), but {spec.signature} returns ({expected})")
    return tuple(each.name for each in declared.fields)


def type_name(type_: DataType) -> str:
    """The type as Spark's SQL writes it."""
    return type_.simpleString()
