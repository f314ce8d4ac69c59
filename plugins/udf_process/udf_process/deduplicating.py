"""The first row of each key."""

from collections.abc import Iterator
from typing import Annotated

import udf_server as udf
from udf_server import ArgumentTrait, StateHint, ValueView

__all__ = ["Deduplicate"]


class Deduplicate(udf.ProcessTableFunction):
    """The first row of each key with all its columns. A key is forgotten a day after its last first row.

    In batch no key is forgotten, because no time passes.
    """

    name = "deduplicate"
    returns = ""

    def eval(
        self,
        ctx: udf.ProcessContext,
        seen: Annotated[ValueView[bool], StateHint(ttl="1 day")],
        input: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE, ArgumentTrait.PASS_COLUMNS_THROUGH],
    ) -> Iterator[tuple[()]]:
        if seen.is_empty:
            seen.value = True
            yield ()
