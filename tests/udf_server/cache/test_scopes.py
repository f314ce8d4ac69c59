"""Which callers share outcomes: those that were kept, and those of rows in flight."""

import pytest

import udf_server as udf
from tests.udf_server.talk import Talk, batch, eventually, finish
from udf_server.base.metrics import ServerMetrics
from udf_server.cache.outcome_cache import OutcomeCache
from udf_server.hosting.registry import FunctionHost, Registry
from udf_server.security.access import Caller
from udf_server.stores.memory import MemoryStore


@pytest.mark.parametrize(
    ("callers_differ", "scopes", "calls"),
    [
        (True, ("", ""), 2),
        (False, ("", ""), 1),
        (True, ("all", "all"), 1),
        (False, ("caller", "caller"), 2),
        (True, ("all", "caller"), 2),
    ],
)
async def test_callers_share_outcomes_if_both_ask_for_that(callers_differ, scopes, calls):
    called = []

    @udf.scalar(cache_ttl="1 h")
    async def f(a: int) -> int:
        called.append(a)
        return a

    cache = OutcomeCache(MemoryStore(1 << 20), ServerMetrics(), callers_differ=callers_differ)
    host = FunctionHost(Registry([("test", f)]))
    for name, scope in zip(("one", "two"), scopes, strict=True):
        for _ in range(2):
            async with Talk(host=host, cache=cache, caller=Caller(name)) as talk:
                await talk.open(options={"cache-scope": scope} if scope else {})
                talk.send(batch(0, 0, [7]), finish())
                await talk.ended()
                await eventually(lambda: talk.metric("udf_rows_total", function="f", version="1", outcome="ok") == 1)
    assert called == [7] * calls
    await cache.close()
    await host.close()
