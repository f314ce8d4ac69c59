"""`DESCRIBE FUNCTION [EXTENDED] name` of a remote function: Spark knows only that it is implemented in Python."""

import inspect

from pyspark.sql import DataFrame

from remote_udf.functions import FunctionSpec
from spark_client.sql.rows.functions import SqlFunctions
from spark_client.sql.text.parsing import Text

__all__ = ["description_of_function"]


def description_of_function(functions: SqlFunctions, text: Text) -> DataFrame | None:
    """The lines that describe a remote function, in Spark's column for them; None for any other text."""
    *words, name = [token.text for token in text.tokens] or [""]
    verb, *rest = [word.upper() for word in words] or [""]
    extended = rest == ["FUNCTION", "EXTENDED"]
    if verb not in ("DESCRIBE", "DESC") or not (extended or rest == ["FUNCTION"]) or functions.kind(name) is None:
        return None
    lines = _lines(functions.spec(name), extended=extended)
    return functions.spark.createDataFrame([(line,) for line in lines], "function_desc string")


def _lines(spec: FunctionSpec, *, extended: bool) -> list[str]:
    kind = f"{spec.kind}, returns rows: call it in FROM" if spec.returns_rows else str(spec.kind)
    lines = [f"Function: {spec.key}", f"Kind: {kind}", f"Usage: {spec.signature}"]
    if spec.description:
        lines.append(f"Description: {inspect.cleandoc(spec.description)}")
    if extended:
        lines += [f"Deterministic: {str(spec.deterministic).lower()}", f"Nulls: {spec.nulls}"]
        lines += [f"Owner: {spec.owner}"] if spec.owner else []
        lines += [f"Option: {name}={value}" for name, value in spec.options.items()]
    return lines
