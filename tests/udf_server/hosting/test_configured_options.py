"""Options of the server's file that have no effect on a function are named when the server starts."""

import logging
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import udf_server as udf
from remote_udf.effective_options import canonical
from remote_udf.errors import InvalidOption
from remote_udf.options import AGGREGATE_OPTIONS, SCALAR_OPTIONS
from tests.udf_server.aggregate_functions import CountAll
from udf_server.aggregate.declaration import declare_aggregate
from udf_server.hosting.function_options import explained, ignored_options
from udf_server.hosting.registry import FunctionHost, Registry
from udf_server.serving.config import ServerConfig


@udf.scalar(deterministic=False)
async def roll(a: int) -> int:
    return a


@udf.scalar(deterministic=False, cache_ttl="1 h")
async def draw(a: int) -> int:
    return a


@udf.scalar
def plain(a: int) -> int:
    return a


@udf.scalar(idempotent=True, batched=True)
async def many(a: list[int]) -> list[int]:
    return a


FUNCTIONS = (roll, draw, plain, many, declare_aggregate(CountAll))
EVERY = {
    "cache-ttl": "1 h", "attempt-timeout": "1 s", "hedge-after": "1 s", "max-queue-delay": "1 ms",
    "timeout": "9 s", "retry-empty": "true",
}  # fmt: skip


def test_options_that_have_no_effect_are_found_by_function():
    configured = dict.fromkeys(("*", "roll", "draw", "plain", "many", "count_all", "typo"), EVERY)
    found: dict[str, set[str]] = {}
    for each in ignored_options(FUNCTIONS, configured):
        found.setdefault(each.setting.partition(".")[2].partition(".")[0], set()).add(each.setting.split(".")[-1])
    assert found == {
        "roll": {"cache-ttl", "max-queue-delay", "hedge-after"},
        "draw": {"max-queue-delay", "hedge-after"},
        "plain": {"attempt-timeout", "max-queue-delay", "hedge-after"},
        "many": {"retry-empty"},
        "count_all": {*EVERY} - {"timeout"},
        "typo": {"typo"},
        "*": {"cache-ttl"},
    }


def test_a_default_that_functions_override_is_named():
    [found] = ignored_options(FUNCTIONS, {"*": {"cache-ttl": "1 h", "timeout": "1 s", "at-most.cache-ttl": "1 h"}})
    assert (found.setting, found.function, found.expected) == ("functions.*.cache-ttl", "draw@1", True)
    assert "[functions.NAME] cache-ttl" in found.reason
    [found] = ignored_options([plain], {"*": {"attempt-timeout": "1 s", "timeout": "1 s"}})
    assert (found.setting, found.function) == ("functions.*.attempt-timeout", "") and "plain `def`" in found.reason


def test_a_setting_above_its_cap_is_named():
    settings = {"*": {"at-most.timeout": "1 s", "timeout": "9 s"}, "plain": {"timeout": "2 s", "max-attempts": "9"}}
    [found] = ignored_options(FUNCTIONS, settings)
    assert (found.setting, found.reason) == ("functions.plain.timeout", "at-most.timeout is 1 s")
    settings["plain"]["at-most.timeout"] = "2 s"
    assert list(ignored_options(FUNCTIONS, settings)) == []


VALUES = {
    "timeout": ["1 s", "20 s", "5 min"], "max-attempts": ["1", "3", "7"], "buffer-capacity": ["5", "100", "300"],
    "attempt-timeout": ["1 s", "30 s"], "cache-ttl": ["0 s", "1 h"], "size": ["7", "5000000"],
}  # fmt: skip
layers = st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in VALUES.items()})
caps = layers.map(lambda layer: {f"at-most.{name}": text for name, text in layer.items()})
UNSET = {"attempt-timeout": math.inf, "buffer-capacity": 100, "cache-ttl": 0}


@given(st.sampled_from(["scalar", "aggregate"]), layers, layers, layers, layers, caps, caps)
async def test_an_option_has_the_value_of_the_first_place_that_sets_it(kind, call, own, declared, every, cap, cap_all):
    """And never more than its cap."""
    table = SCALAR_OPTIONS if kind == "scalar" else AGGREGATE_OPTIONS
    call, declared = ({name: text for name, text in each.items() if name in table} for each in (call, declared))
    function = declare_aggregate(CountAll) if kind == "aggregate" else replace(roll)
    function.spec = replace(function.spec, options=declared, deterministic=True)
    name = function.spec.name
    settings = {"*": {**every, **cap_all}, name: {**own, **cap}}
    host = FunctionHost(Registry([("test", function)]), defaults=settings)
    options = host.find(name).options
    found = options.scalar(call) if kind == "scalar" else options.aggregate(call)
    without_call = {option: text for option, text, _ in explained(function, settings)}
    for option in VALUES.keys() & table.keys():
        known = table[option]

        def expected(*places, option=option, known=known):
            text = next((place[option] for place in places if option in place), None)
            most = {**cap_all, **cap}.get(f"at-most.{option}")
            value = known.default if text is None else known.parse(text)
            if most is not None and (UNSET.get(option) if value is None else value) > known.parse(most):
                value = known.parse(most)
            return value

        assert getattr(found, known.attribute) == expected(call, own, declared, every)
        shown = without_call[option]
        assert (known.parse(shown) if shown else None) == expected(own, declared, every)
    await host.close()


def test_the_source_of_each_option_is_shown():
    settings = {"*": {"timeout": "9 s", "max-attempts": "2", "at-most.timeout": "5 s"}, "draw": {"max-attempts": "4"}}
    found = {option: (text, source) for option, text, source in explained(draw, settings)}
    assert found["cache-ttl"] == ("1 h", "declaration")
    assert found["max-attempts"] == ("4", "functions.draw")
    assert found["timeout"] == ("5 s", 'functions."*".at-most.timeout, which lowers it')
    assert found["at-most.timeout"] == ("5 s", 'functions."*"')
    assert found["batch-rows"] == ("65536", "default")


@pytest.mark.parametrize("name", ["*", "roll", "draw", "plain", "many"])
async def test_an_option_has_an_effect_unless_it_is_named(name):
    """Differential: what the start of the server names is what calls do without."""
    registry = Registry([("test", function) for function in FUNCTIONS])
    host = FunctionHost(registry, defaults={name: EVERY})
    for function in FUNCTIONS[:4]:
        if name not in ("*", function.spec.name):
            continue
        hosted = host.find(function.spec.name)
        options, of_all = hosted.options.scalar({}), hosted.options
        used = {
            "cache-ttl": options.cache_ttl, "attempt-timeout": options.attempt_timeout, "hedge-after": of_all.hedging,
            "max-queue-delay": of_all.merging, "timeout": options.timeout,
            "retry-empty": options.retry_empty,
        }  # fmt: skip
        named = {each.setting.split(".")[-1] for each in ignored_options([function], {function.spec.name: EVERY})}
        assert {option for option, value in used.items() if not value} == named
    await host.close()


def test_the_start_of_a_server_names_settings_without_effect(serve, caplog):
    configured = {"roll": {"cache-ttl": "1 h"}, "*": {"cache-ttl": "2 h"}, "rol": {"timeout": "1 s"}}
    with caplog.at_level(logging.WARNING, "udf_server.serving.server"):
        serve(roll, plain, functions=configured)
    named = [record for record in caplog.records if record.message == "a setting has no effect"]
    found = [(each.setting, each.function) for each in named]
    assert found == [("functions.roll.cache-ttl", "roll@1"), ("functions.rol", "")]
    assert "declared with deterministic=False" in named[0].reason and "no such function" in named[1].reason


def test_an_option_that_was_removed_has_no_effect_and_is_warned_of(caplog):
    @udf.scalar(idempotent=True, hedge_elsewhere="50 ms", timeout="3 s")
    def f(x: int) -> int:
        return x

    config = ServerConfig(functions={"*": {"hedge-elsewhere": "p95", "timeout": "4 s"}})
    assert (f.spec.options, config.functions) == ({"timeout": "3 s"}, {"*": {"timeout": "4 s"}})
    named = [record.getMessage() for record in caplog.records]
    assert len(named) == 2 and all("option 'hedge-elsewhere' has no effect" in text for text in named)
    with pytest.raises(InvalidOption, match="unknown option 'hedge-elsewhere'"):
        canonical({"hedge-elsewhere": "1 s"}, source="call")
