"""Remote functions that imitate Spark's own, as a user would write them.

Each of the forms is here: asynchronous and synchronous, row by row and vectorized; classic, bundled and vectorized
aggregates; with and without `merge` and `retract`; accumulators that are the value, and are changed in place.
"""

from typing import Any

import udf_server as udf
from tests.differential.plugin import machine, of_any_type, of_numbers, scalars


@udf.hookimpl
def udf_functions() -> list[Any]:
    """What this plugin offers."""
    return [*scalars.FUNCTIONS, *of_numbers.FUNCTIONS, *of_any_type.FUNCTIONS, *machine.FUNCTIONS]
