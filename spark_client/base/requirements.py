"""Checks of what a job needs in its Python, one sentence each, before the first public name is used."""

import importlib.util
import re
import sys
from importlib.metadata import PackageNotFoundError, version

__all__ = ["require_packages"]

_NEEDED = ("pyspark", "pandas", "sqlglot")


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
    try:
        pandas = version("pandas")
    except PackageNotFoundError:
        return  # it is not installed as a package, such as in an archive of the cluster
    if _numbers(pandas) >= (3,):
        raise ImportError(
            f"PySpark {spark} needs pandas 2.2 or later and below 3, found {pandas}: pip install 'pandas<3'"
        )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:2]))
