"""Checks of what a job needs in its Python, one sentence each, before the first public name is used."""

import importlib.util
import re
import sys
from importlib.metadata import PackageNotFoundError, version

__all__ = ["SQLGLOT", "require_packages"]

_NEEDED = ("pyspark", "pandas", "sqlglot")
SQLGLOT = (30, 30), (31,)
"""The oldest release of sqlglot that is supported, and the first one that is not, as in `pyproject.toml`."""


def require_packages() -> None:
    """Raises ImportError if a package is missing or has a version that is not supported."""
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise ImportError(
            f"{' and '.join(missing)} not installed for {sys.executable}: a Spark job needs "
            "pip install 'remote-udf[spark]'"
        )
    import pyspark  # noqa: PLC0415 - only now it is known to be there

    spark = pyspark.__version__
    if _numbers(spark) < (4, 1):
        raise ImportError(f"remote-udf needs PySpark 4.1 or later, found {spark}: pip install 'pyspark[connect]>=4.1'")
    sqlglot = _version("sqlglot")
    if sqlglot is not None and not SQLGLOT[0] <= _numbers(sqlglot) < SQLGLOT[1]:
        oldest, below = (".".join(map(str, end)) for end in SQLGLOT)
        raise ImportError(
            f"remote-udf needs sqlglot {oldest} or later and below {below}, found {sqlglot}: "
            f"pip install 'sqlglot>={oldest},<{below}'"
        )
    parser = importlib.util.find_spec("sqlglot.parser")
    if parser is not None and parser.origin is not None and not parser.origin.endswith((".py", ".pyc")):
        raise ImportError(
            "remote-udf extends the parser of sqlglot, which sqlglotc replaces by a compiled one: "
            "pip uninstall sqlglotc sqlglot, then pip install sqlglot"
        )


def _version(package: str) -> str | None:
    """The version of a package; None if it is not installed as one, such as in an archive of the cluster."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:2]))
