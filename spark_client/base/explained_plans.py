"""Reads Spark's description of the plans of a DataFrame, for what nothing in its columns tells."""

import inspect
from types import FunctionType

from pyspark.sql import DataFrame

from spark_client.base.errors import PlanError
from spark_client.base.identifiers import hidden

__all__ = ["analyzed_plan", "cost_plan"]


def analyzed_plan(frame: DataFrame) -> list[str]:
    """The lines of the analyzed plan, which are indented by depth. A tilde marks operators over streams."""
    text = _explained(frame, "extended")
    return text.partition("== Analyzed Logical Plan ==")[2].partition("\n== ")[0].splitlines()


def cost_plan(frame: DataFrame) -> str:
    """The optimized plan with the statistics of its nodes, and the physical plan."""
    return _explained(frame, "cost")


def _explained(frame: DataFrame, mode: str) -> str:
    """What `DataFrame.explain` prints, of a copy: Spark fixes the plan that it explains, and omits later caches of it.

    Standard output belongs to the whole process, so the method gets a `print` of its own. Raises PlanError if it prints
    in another way.
    """
    found: list[str] = []
    copy = frame.alias(hidden("explained"))
    method = inspect.unwrap(copy.explain.__func__)  # type: ignore[attr-defined]
    names = {**method.__globals__, "print": found.append}
    FunctionType(method.__code__, names, None, method.__defaults__, method.__closure__)(copy, mode=mode)
    if not found:
        raise PlanError(f"Spark's plan cannot be read: {type(frame).__module__}.DataFrame.explain does not print it")
    return "\n".join(found)
