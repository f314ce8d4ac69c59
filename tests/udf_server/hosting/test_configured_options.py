"""Options of the server's file that have no effect on a function are named when the server starts."""

import logging

import pytest

import udf_server as udf
from remote_udf.effective_options import canonical
from remote_udf.errors import InvalidOption
from tests.udf_server.aggregate_functions import CountAll
from udf_server.aggregate.declaration import declare_aggregate
from udf_server.hosting.function_host import FunctionHost
from udf_server.hosting.function_options import ignored_options
from udf_server.hosting.registry import Registry
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
    "timeout": "9 s",
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
        "count_all": {*EVERY} - {"timeout"},
        "typo": {"typo"},
    }


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
