"""The plugin of the runner's server: every function of the folder that CONFORMANCE_CASES names."""

import os
from pathlib import Path
from typing import Any

import udf_server as udf
from tests.conformance.functions.building import built_functions
from tests.conformance.functions.parts import part_functions
from tests.conformance.functions.process_tables import process_functions
from tests.conformance.functions.window_functions import ConcatDistinctAgg
from tests.conformance.given_plugin import counted
from tests.conformance.reading import load_folder
from udf_process import FromChangelog, ToChangelog

__all__ = ["CASES_VARIABLE", "udf_functions"]

CASES_VARIABLE = "CONFORMANCE_CASES"


@udf.hookimpl
def udf_functions() -> list[Any]:
    cases = [case for file in load_folder(Path(os.environ[CASES_VARIABLE])) for case in file.cases]
    built = [counted(each.function) for each in built_functions(cases)[0]]
    own = [*part_functions(cases), *process_functions(cases), ConcatDistinctAgg()]
    return [*built, *own, ToChangelog(), FromChangelog()]
