"""The package's public surface, and the order of public names in its modules."""

import importlib
import pkgutil

import pytest

import remote_udf

MODULES = [module.name for module in pkgutil.iter_modules(remote_udf.__path__) if module.name != "v1"]


def test_the_package_offers_its_version_only():
    public = {name for name in vars(remote_udf) if not name.startswith("_")} - {"v1", *MODULES}
    assert (public, remote_udf.__all__) == (set(), ["__version__"])


@pytest.mark.parametrize("name", [name for name in MODULES if name != "version"])
def test_what_a_module_exports_is_defined_and_sorted(name):
    module = importlib.import_module(f"remote_udf.{name}")
    # ruff's order for __all__ is constants, then classes, then functions, each by name.
    kinds = {True: 0, False: 1}
    order = sorted(module.__all__, key=lambda n: (kinds[n.isupper()], not n[0].isupper(), n))
    assert module.__all__ == order
    assert all(hasattr(module, export) for export in module.__all__)


@pytest.mark.slow
def test_the_shared_package_needs_neither_end():
    import subprocess
    import sys

    code = (
        "import pkgutil, importlib, sys, remote_udf\n"
        "for m in pkgutil.iter_modules(remote_udf.__path__): importlib.import_module('remote_udf.' + m.name)\n"
        "print(sorted({'pluggy', 'pyspark', 'udf_server', 'spark_client', 'asyncio'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"
