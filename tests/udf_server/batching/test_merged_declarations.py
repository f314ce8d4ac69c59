"""Who may have calls merged: declarations, the operator, and not the call."""

import pytest

import udf_server as udf
from remote_udf.errors import StreamError
from tests.udf_server.merging import recorded
from tests.udf_server.talk import Talk, opening
from udf_server.base.errors import DeclarationError
from udf_server.hosting.registry import FunctionHost, Registry

REFUSED = [
    ({"max_queue_delay": "1 ms"}, False, "is for functions that are called for many rows"),
    ({"instances": 2}, False, "is for functions that are called for many rows"),
    ({"batched": True, "max_queue_delay": "soon"}, False, "option 'max-queue-delay': "),
    ({"batched": True, "batch_bytes": "0 kB"}, False, "option 'batch-bytes': '0 kB' is less than one byte"),
    ({"batched": True, "instances": 0}, False, "not a whole number of at least 1"),
    ({"batched": True, "max_queue_delay": "1 ms"}, True, "there is no CallContext of the call"),
]


@pytest.mark.parametrize(("options", "context", "why"), REFUSED)
def test_a_declaration_that_cannot_be_merged_is_refused(options, context, why):
    def many(a: list[int]) -> list[int]: ...
    def one(a: int) -> int: ...
    def with_context(a: list[int], c: udf.CallContext) -> list[int]: ...

    code = with_context if context else many if options.get("batched") else one
    with pytest.raises(DeclarationError) as refused:
        udf.scalar(**options)(code)
    assert why in str(refused.value)


def test_a_function_of_one_row_has_no_batch_context():
    with pytest.raises(DeclarationError, match="a BatchContext is for vectorized and batched functions"):

        @udf.scalar
        def f(a: int, context: udf.BatchContext) -> int: ...


async def test_the_operator_may_merge_calls_and_is_told_if_that_is_not_possible():
    calls: list[list[int]] = []
    f = recorded(calls, max_queue_delay=None)

    @udf.scalar(batched=True)
    def single(a: list[int], context: udf.CallContext) -> list[int]:
        return a

    defaults = {"*": {"max-queue-delay": "20 ms"}}
    host = FunctionHost(Registry([("test", f), ("test", single)]), defaults=defaults)
    async with Talk(host=host) as talk:
        await talk.open()
        assert host.find("f").options.merging is not None
        async with Talk(host=host) as other:
            other.send(opening("single"))
            error = (await other.receive()).error
            assert "have the function take a BatchContext" in error.message


async def test_a_call_cannot_set_what_concerns_all_calls(environment):
    with pytest.raises((StreamError, ValueError), match="concerns all calls of a scalar function"):
        await environment.run(recorded([]), [1], max_queue_delay="1 s")
