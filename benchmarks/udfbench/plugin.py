"""The functions of UDFBench as a plugin of the server, which loads it by its file name."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import numpy as np
import pyarrow as pa

import udf_server as udf
from benchmarks.udfbench import logic
from benchmarks.udfbench.all_rows import OfAllRows
from udf_server import ArgumentTrait

ROW = ArgumentTrait.ROW_SEMANTIC_TABLE
_TYPES = {"int": pa.int32(), "bigint": pa.int64(), "double": pa.float64(), "string": pa.string()}


def _declared(function: Callable[..., Any], parameters: str, returns: str) -> Any:
    @functools.wraps(function)
    def call(*columns: pa.Array) -> pa.Array:
        return pa.array(list(map(function, *(column.to_pylist() for column in columns))), _TYPES[returns])

    return udf.scalar(parameters=parameters, returns=returns, vectorized=True)(call)


globals().update({
    function.__name__: _declared(function, *types) for function, types in logic.SCALARS.items()
})  # fmt: skip


class ReadFile(udf.ProcessTableFunction):
    """The lines of a file."""

    name, returns = "read_file", "line string"

    def eval(self, path: str) -> Iterator[tuple[str]]:
        yield from logic.read_file(path)


class DateParts(udf.ProcessTableFunction):
    """The parts of a date."""

    name, returns = "date_parts", "id string, day int, month int, year int"

    def eval(self, input: Annotated[udf.Row, ROW]) -> Iterator[tuple[Any, ...]]:
        yield from logic.date_parts(input[0], input[1])


class PairsOf(udf.ProcessTableFunction):
    """Every pair of names."""

    name, returns = "pairs_of", "id string, pair string"

    def eval(self, input: Annotated[udf.Row, ROW]) -> Iterator[tuple[str, str]]:
        yield from logic.pairs_of(input[0], input[1])


class WordsOf(udf.ProcessTableFunction):
    """Every word."""

    name, returns = "words_of", "id string, word string"

    def eval(self, input: Annotated[udf.Row, ROW]) -> Iterator[tuple[str, str]]:
        yield from logic.words_of(input[0], input[1])


class RecordsOfJson(udf.ProcessTableFunction):
    """DOI and funding."""

    name, returns = "records_of_json", "doi string, funding string"

    def eval(self, input: Annotated[udf.Row, ROW]) -> Iterator[tuple[str, str]]:
        yield from logic.records_of_json(input[0])


class RecordsOfXml(udf.ProcessTableFunction):
    """DOI and funding."""

    name, returns = "records_of_xml", "doi string, funding string"

    def eval(self, input: Annotated[udf.Row, ROW]) -> Iterator[tuple[str, str]]:
        yield from logic.records_of_xml(input[0])


class MeanOf(udf.VectorizedAggregateFunction):
    """The average."""

    name, parameters, returns, accumulator = "mean_of", "x double", "double", "struct<sum:double,count:bigint>"

    def supports_merging(self) -> bool:
        return True

    def apply_bundle(self, bundle: udf.Bundle) -> pa.Array:
        values = bundle.columns[0].fill_null(0.0).to_numpy(zero_copy_only=False)
        present = bundle.columns[0].is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
        sums, counts = (part.to_numpy(zero_copy_only=False) for part in bundle.accumulators.flatten())
        total = bundle.reduce_rows(np.add, values) + bundle.reduce_accumulators(np.add, sums)
        count = bundle.reduce_rows(np.add, present) + bundle.reduce_accumulators(np.add, counts)
        return pa.StructArray.from_arrays([pa.array(total), pa.array(count)], names=["sum", "count"])

    def get_values(self, accumulators: pa.Array) -> pa.Array:
        sums, counts = (part.to_numpy(zero_copy_only=False) for part in accumulators.flatten())
        return pa.array(sums / np.maximum(counts, 1), mask=counts == 0)


def _of_all_rows(function: Callable[..., Any], parameters: str, returns: str, type_: pa.DataType) -> type:
    fields = ",".join(":".join(each.split()) for each in parameters.split(","))
    attributes = {
        "__doc__": function.__doc__, "name": function.__name__, "parameters": parameters, "returns": returns,
        "accumulator": f"array<struct<{fields}>>", "value": staticmethod(function), "type": type_,
    }  # fmt: skip
    return type(function.__name__.title().replace("_", ""), (OfAllRows,), attributes)


_PAIR = pa.struct([("one", pa.string()), ("other", pa.string()), ("score", pa.float64())])
_NEAR = pa.struct([("id", pa.string()), ("cluster", pa.int32())])
_COUNTS = pa.struct([("publications", pa.int32()), ("datasets", pa.int32()), ("software", pa.int32())])


def _rows(function: Callable[..., Any], type_: pa.StructType) -> Callable[..., Any]:
    """The function with its tuples as dictionaries, which Arrow converts to structs."""
    names = [field.name for field in type_]

    @functools.wraps(function)
    def call(*columns: Sequence[Any]) -> Any:
        found = function(*columns)
        return dict(zip(names, found, strict=True)) if isinstance(found, tuple) else [
            dict(zip(names, row, strict=True)) for row in found
        ]  # fmt: skip

    return call


Middle = _of_all_rows(logic.middle, "x double", "double", pa.float64())
Latest = _of_all_rows(logic.latest, "x string", "string", pa.string())
Summary = _of_all_rows(logic.summary, "x double", "string", pa.string())
Clusters = _of_all_rows(
    _rows(logic.clusters, _NEAR), "id string, amount double", "array<struct<id:string,cluster:int>>", pa.list_(_NEAR)
)
TopFive = _of_all_rows(
    _rows(logic.top_five, _PAIR), "one string, other string, score double",
    "array<struct<one:string,other:string,score:double>>", pa.list_(_PAIR),
)  # fmt: skip
Pivoted = _of_all_rows(
    _rows(logic.pivoted, _COUNTS), "kind string", "struct<publications:int,datasets:int,software:int>", _COUNTS
)
