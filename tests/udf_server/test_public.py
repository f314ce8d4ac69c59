"""The package's public surface, the tree of its errors, and whom it imports."""

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import types

import pytest

import udf_server
from remote_udf import errors as shared_errors
from remote_udf.errors import RemoteUdfError, StreamError
from udf_server.base import errors
from udf_server.streams.stream_reports import as_stream_error

MODULES = [
    module.name
    for module in pkgutil.walk_packages(udf_server.__path__, "udf_server.")
    if not module.ispkg and not module.name.endswith("__main__")
]


def test_what_authors_import_is_listed_and_nothing_else_is_public():
    public = {
        name
        for name, value in vars(udf_server).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public | {"__version__"} == set(udf_server.__all__)


@pytest.mark.parametrize("name", ["CallContext", "Function", "RetryableError", "hookimpl", "scalar"])
def test_what_a_plugin_needs_is_there(name):
    assert name in udf_server.__all__
    assert getattr(udf_server, name).__doc__ or name == "hookimpl"


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_it_exports_and_what_for(name):
    module = importlib.import_module(name)
    assert module.__doc__
    assert all(hasattr(module, export) for export in module.__all__)


def test_the_tree_in_the_docstring_lists_every_error():
    classes = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    drawing = (errors.__doc__ or "").partition("\n\n")[2]
    drawn = set(re.findall(r"^[│├└─ ]*([A-Z]\w+) ", drawing, re.MULTILINE))
    assert classes == drawn


def test_every_error_is_exported_and_says_when_it_is_raised():
    classes = [value for value in vars(errors).values() if inspect.isclass(value)]
    own = [value for value in classes if value.__module__ == errors.__name__]
    assert {value.__name__ for value in own} == set(errors.__all__)
    assert [value for value in own if not vars(value).get("__doc__")] == []


def every_error():
    for module in (shared_errors, errors):
        for value in vars(module).values():
            if inspect.isclass(value) and issubclass(value, RemoteUdfError):
                yield value


@pytest.mark.parametrize("kind", sorted(set(every_error()), key=lambda kind: kind.__name__))
def test_every_error_ends_a_stream_with_a_code(kind):
    if kind is StreamError:
        error = kind(shared_errors.ErrorKind.USER, shared_errors.ErrorCode.OPEN_FAILED, "why")
    elif kind is errors.RowErrors:
        error = kind({0: ValueError("why")})
    else:
        error = kind("why")
    ended = as_stream_error(error)
    assert ended.code in shared_errors.ErrorCode
    assert "why" in ended.message


@pytest.mark.slow
def test_the_server_imports_neither_the_client_nor_spark():
    code = (
        "import importlib, pkgutil, sys, udf_server\n"
        "for m in pkgutil.walk_packages(udf_server.__path__, 'udf_server.'):\n"
        "    if not m.name.endswith('__main__'): importlib.import_module(m.name)\n"
        "print(sorted({'spark_client', 'pyspark', 'pandas'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"


@pytest.mark.slow
def test_declaring_a_function_starts_no_thread_and_no_loop():
    code = (
        "import threading, udf_server as udf\n"
        "@udf.scalar\n"
        "async def f(a: int) -> int: return a\n"
        "print(threading.active_count())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "1"
