"""Classes with `instances`: each common call has an object for itself, opened for the device of the process."""

import asyncio
import threading

import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode, StreamError
from tests.udf_server.talk import Talk, batch, finish
from tests.waiting import wait_until
from udf_server.base.call_scope import CallScope, current_scope
from udf_server.declaring.hooks import FunctionContext
from udf_server.declaring.instances import Instance, Instances
from udf_server.hosting.registry import FunctionHost, Registry
from udf_server.testing import FunctionEnvironment

COMMON = {"batched": True, "batch_rows": 1, "max_queue_delay": "0 s", "name": "f"}


class Events(list):
    """What happened, in order; one list for all objects of a class."""

    def of(self, name):
        return [event[1:] for event in self if event[0] == name]


def model(events, **options):
    """A class whose calls meet: a call returns when all instances have one, and says which object it had."""
    together = threading.Barrier(options.get("instances", 1))

    class Model:
        def open(self, context: udf.FunctionContext) -> None:
            self.context, self.busy = context, threading.Lock()
            events.append(("open", context.device, context.instance, context.instances))

        def eval(self, a: list[int]) -> list[int]:
            assert self.busy.acquire(blocking=False), "two calls have the same object"
            together.wait(20)
            self.busy.release()
            return [self.context.instance] * len(a)

        def close(self) -> None:
            events.append(("close", self.context.instance))

    return udf.scalar(**{**COMMON, **options})(Model)


async def test_each_call_has_an_object_for_itself_that_is_opened_and_closed():
    events = Events()
    function = model(events, instances=3)
    async with FunctionEnvironment(device="cuda:0") as environment:
        result = await environment.run(function, list(range(9)), batch_rows=1)
        assert events == [("open", "cuda:0", 0, 3), ("open", "cuda:0", 1, 3), ("open", "cuda:0", 2, 3)]
    assert sorted(result.to_pylist()) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert events.of("close") == [(0,), (1,), (2,)]


async def test_the_operator_sets_the_number_of_instances():
    events = Events()
    host = FunctionHost(Registry([("test", model(events))]), defaults={"f": {"instances": "2"}})
    async with Talk(host=host) as talk:
        await talk.open()
    assert events.of("open") == [("cpu", 0, 2), ("cpu", 1, 2)]


async def test_without_common_calls_all_calls_share_one_object():
    events = Events()
    function = model(events, max_queue_delay=None)
    async with FunctionEnvironment() as environment:
        await environment.run(function, [1, 2])
    assert events == [("open", "cpu", 0, 1), ("close", 0)]


async def test_the_calls_of_an_async_class_share_one_object(environment):
    opened = []

    @udf.scalar(**{**COMMON, "instances": 2})
    class Client:
        async def open(self, context: udf.FunctionContext) -> None:
            opened.append(context.instances)

        async def eval(self, a: list[int]) -> list[int]:
            return a

    assert (await environment.run(Client, [1, 2, 3])).to_pylist() == [1, 2, 3]
    assert opened == [1]


async def test_a_class_without_hooks_has_instances_too(environment):
    together = threading.Barrier(2)

    @udf.scalar(**{**COMMON, "instances": 2})
    class Model:
        def eval(self, a: list[int]) -> list[int]:
            together.wait(20)
            return [id(self)]

    assert len(set((await environment.run(Model, [1, 2], batch_rows=1)).to_pylist())) == 2


async def test_an_instance_that_fails_to_open_closes_the_others_and_the_next_stream_tries_again(environment):
    events, failing = Events(), [True]

    @udf.scalar(**{**COMMON, "instances": 3})
    class Model:
        def open(self, context: udf.FunctionContext) -> None:
            events.append(("open", context.instance))
            self.number = context.instance
            if context.instance == 2 and failing.pop():
                failing.append(False)
                raise MemoryError("the device is full")

        def eval(self, a: list[int]) -> list[int]:
            return a

        def close(self) -> None:
            events.append(("close", self.number))

    with pytest.raises(StreamError, match="function f@1: open failed: MemoryError: the device is full") as raised:
        await environment.run(Model, [1])
    assert (raised.value.code, raised.value.retryable) == (ErrorCode.OPEN_FAILED, True)
    assert events == [("open", 0), ("open", 1), ("open", 2), ("close", 0), ("close", 1)]
    assert (await environment.run(Model, [1])).to_pylist() == [1]


@pytest.mark.parametrize("reopens", [True, False], ids=["opens again", "does not open again"])
async def test_an_object_whose_call_does_not_return_is_replaced_and_closed_in_the_end(reopens):
    events, released = Events(), threading.Event()

    @udf.scalar(**{**COMMON, "timeout": "200 ms", "max_attempts": 1})
    class Model:
        def open(self) -> None:
            events.append(("open", id(self)))
            if len(events.of("open")) > 1 and not reopens:
                raise MemoryError("the device is full")

        def eval(self, a: list[int]) -> list[int]:
            if 1 in a:
                released.wait(60)
            return [id(self)]

        def close(self) -> None:
            events.append(("close", id(self)))

    async with FunctionEnvironment() as environment:
        assert (await environment.run(Model, [1])).errors[0].code is ErrorCode.TIMEOUT
        (first,) = events.of("open")[0]
        if reopens:
            assert (await environment.run(Model, [2])).to_pylist() == [events.of("open")[1][0]] != [first]
        else:
            with pytest.raises(StreamError, match="in place of one whose call did not return: MemoryError"):
                await environment.run(Model, [2])
        released.set()
        await asyncio.to_thread(wait_until, lambda: (first,) in events.of("close"))
    assert sorted(events.of("close")) == sorted(events.of("open")[: 1 + reopens])


async def test_calls_that_join_no_others_have_objects_for_themselves_too():
    """Those of a job with a budget: they take the same objects as common calls."""
    entered, released, together = threading.Event(), threading.Event(), []

    @udf.scalar(**COMMON)
    class Model:
        running = 0

        def eval(self, a: list[int]) -> list[int]:
            self.running += 1
            together.append(self.running)
            entered.set()
            assert released.wait(20)
            self.running -= 1
            return a

    async with Talk(host=FunctionHost(Registry([("test", Model)]))) as talk:
        await talk.open()
        talk.send(batch(0, 0, [1]), finish())
        assert await asyncio.to_thread(entered.wait, 20)
        other = asyncio.create_task(asyncio.to_thread(Model.call, [2]))
        released.set()
        assert await other == [2]
        assert (await talk.receive()).WhichOneof("response") == "result"
        assert (await talk.receive()).WhichOneof("response") == "finished"
    assert together == [1, 1]


async def test_a_call_that_finds_no_free_instance_before_its_deadline_times_out():
    now, entered, release = [0.0], threading.Event(), threading.Event()

    def wait():
        entered.set()
        assert release.wait(20)
        return "done"

    instances = Instances(Instance(wait, [], []), lambda: pytest.fail("none is made"))
    await instances.open(FunctionContext("f", "1"), own=True, clock=lambda: now[0])
    running = asyncio.create_task(asyncio.to_thread(instances.caller))
    assert await asyncio.to_thread(entered.wait, 20)

    def call():
        current_scope.set(CallScope(deadline=0.05))
        now[0] = 0.05
        return instances.caller()

    with pytest.raises(TimeoutError, match="all 1 instances were busy until the call's deadline"):
        await asyncio.to_thread(call)
    release.set()
    assert await running == "done"
    assert await asyncio.to_thread(instances.caller) == "done"


async def test_open_of_an_aggregate_gets_the_context(environment):
    class Devices(udf.AggregateFunction):
        def open(self, context: udf.FunctionContext) -> None:
            self.device = context.device

        def create_accumulator(self) -> list[str]:
            return []

        def accumulate(self, accumulator, text: str):
            accumulator.append(f"{text} on {self.device}")

        def get_value(self, accumulator) -> str:
            return ", ".join(accumulator)

    assert await environment.aggregate(Devices, ["a", "b"]) == {(): "a on cpu, b on cpu"}


def test_a_hook_that_requires_other_arguments_is_refused():
    class Model:
        def open(self, device: str) -> None: ...

        def eval(self, a: int) -> int:
            return a

    message = "function model: 'open' has a parameter 'device', but it gets only a parameter that is annotated as"
    with pytest.raises(udf.DeclarationError, match=message):
        udf.scalar(Model)

    @udf.scalar
    def f(a: int) -> int:
        return a

    with pytest.raises(udf.DeclarationError, match="function f@1: 'close' has a parameter 'context', but it gets no"):
        f.on_close(lambda context: None)


async def test_a_hook_that_is_added_gets_the_context_in_its_place(environment):
    found = []

    @udf.scalar
    async def f(a: int) -> int:
        return a

    @f.on_open
    async def note(context: "udf.FunctionContext", more: int = 1) -> None:
        found.append((context.function, context.version, context.device, more))

    await environment.run(f, [1])
    assert found == [("f", "1", "cpu", 1)]
