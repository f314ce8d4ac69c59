"""The package's public surface, and which of its parts may know which."""

import importlib
import os
import pkgutil
import subprocess
import sys

import pyarrow as pa
import pytest

import spark_client
from remote_udf.functions import FunctionKind, FunctionSpec, Parameter

MODULES = [module.name for module in pkgutil.walk_packages(spark_client.__path__, "spark_client.") if not module.ispkg]


def test_jobs_import_these_names_and_no_others():
    public = {
        name
        for name, value in vars(spark_client).items()
        if not name.startswith("_") and not isinstance(value, type(sys))
    }
    assert public <= set(spark_client.__all__)
    assert all(getattr(spark_client, name) is not None for name in spark_client.__all__)
    assert dir(spark_client) == spark_client.__all__
    with pytest.raises(AttributeError, match="'spark_client' has no attribute 'conect'"):
        spark_client.conect  # noqa: B018
    assert spark_client.__all__ == [
        "AccessDenied",
        "AggregateExpression",
        "Cascade",
        "EmbeddedServerFailed",
        "Estimate",
        "JobSummary",
        "NotARemoteUdfServer",
        "PlanError",
        "RemoteAggregate",
        "RemoteFunction",
        "RemoteGrouping",
        "RemoteSession",
        "Security",
        "ServerUnavailable",
        "SummaryUnavailable",
        "UnknownFunction",
        "Window",
        "WriteFailed",
        "__version__",
        "connect",
        "desc",
        "root_cause",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("given", "used"), [({}, "ERROR"), ({"GRPC_VERBOSITY": "DEBUG"}, "DEBUG")])
def test_grpc_writes_errors_only_unless_the_user_has_set_its_verbosity(given, used):
    code = "import spark_client.executor.stream.channels, os; print(os.environ['GRPC_VERBOSITY'])"
    own = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**own, **given}, stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout == f"{used}\n"


@pytest.mark.parametrize("name", MODULES)
def test_what_a_module_exports_is_defined_and_sorted(name):
    module = importlib.import_module(name)
    # ruff's order for __all__ is constants, then classes, then functions, each by name.
    order = sorted(module.__all__, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
    assert module.__all__ == order
    assert all(hasattr(module, export) for export in module.__all__)


def imported_by(statement, *packages):
    code = f"import sys\n{statement}\nprint(sorted({set(packages)!r} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return out.stdout.strip()


@pytest.mark.slow
def test_the_client_needs_no_server():
    modules = "\n".join(f"import {name}" for name in MODULES)
    assert imported_by(modules, "udf_server", "pluggy", "uvloop", "structlog") == "[]"


@pytest.mark.slow
def test_what_runs_in_workers_imports_neither_planners_nor_the_parser_of_sql():
    modules = "\n".join(f"import {name}" for name in MODULES if name.startswith("spark_client.executor.scalar."))
    assert imported_by(modules, "spark_client.session", "sqlglot", "pandas", "pyspark.sql") == "[]"


@pytest.mark.parametrize("kind", [spark_client.RemoteFunction, spark_client.RemoteAggregate])
def test_a_class_of_functions_has_its_own_docstring_and_a_function_that_of_its_author(kind):
    spec = FunctionSpec(
        "shout", "1", FunctionKind.SCALAR, (Parameter("word", pa.string()),), pa.string(), 1, description="Upper case."
    )
    assert kind.__doc__.startswith("Call it with columns")
    assert kind(spec, None, None).__doc__ == "shout(word string) -> string\n\nUpper case."
