"""Remote functions that imitate Spark's own, as a user would write them.

Every form is included: asynchronous and synchronous, row-wise and vectorized; classic, bundled and vectorized
aggregates; with and without `merge` and `retract`; accumulators that are the value, and that are changed in place.
"""

from typing import Any

import udf_server as udf
from tests.differential.plugin import machine, of_any_type, of_numbers, scalars


@udf.hookimpl
def udf_functions() -> list[Any]:
    """The functions of this plugin."""
    return [*scalars.FUNCTIONS, *of_numbers.FUNCTIONS, *of_any_type.FUNCTIONS, *machine.FUNCTIONS]
