"""The sizes of a Redis's answers are checked while they arrive."""

import asyncio
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.udf_server.limits.sharing.test_ledgers import claim, part
from tests.udf_server.lying_redis import Raw, lies_of
from udf_server.limits.sharing.claims import CoordinationFailed, checked_grant
from udf_server.limits.sharing.ledgers import RedisLedgers
from udf_server.stores.redis_client import AnswerSizes, TooLarge

answers = st.recursive(
    st.sampled_from([b":7\r\n", b"+OK\r\n", b"-ERR no\r\n", b"$-1\r\n", b"*-1\r\n", b"_\r\n", b"#t\r\n", b",1.5\r\n"])
    | st.binary(max_size=40).map(lambda text: b"$%d\r\n%b\r\n" % (len(text), text)),
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda all_: b"*%d\r\n" % len(all_) + b"".join(all_))
        | st.lists(st.tuples(inner, inner), max_size=2).map(
            lambda pairs: b"%%%d\r\n" % len(pairs) + b"".join(key + value for key, value in pairs)
        )
    ),
    max_leaves=12,
)


def checked(data, cuts, sizes):
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(places):
        sizes.check(data[start:end])


@given(st.lists(answers, min_size=1, max_size=6), st.lists(st.integers(0, 10_000), max_size=8))
def test_answers_of_the_sizes_that_were_asked_for_pass_however_they_are_cut(all_, cuts):
    largest = max(map(len, all_))
    checked(b"".join(all_), cuts, AnswerSizes(largest + 10, most_elements=100))


WRONG = [
    b"*2000000000\r\n", b"%60\r\n", b"~101\r\n", b"$200\r\n", b"$2000000000\r\n", b"*2\r\n*99\r\n",
    b"+" + b"a" * 300 + b"\r\n", b"*2\r\n$120\r\n" + b"x" * 120 + b"\r\n$90\r\n", b"*x\r\n", b"$?\r\n",
    b"HTTP/1.1 200 OK\r\n", b"\r\n", b"*1\r\n" * 101,
]  # fmt: skip


@given(st.lists(answers, max_size=3), st.lists(st.integers(0, 10_000), max_size=8), st.sampled_from(WRONG))
def test_a_larger_answer_or_none_at_all_is_found_before_it_has_arrived(before, cuts, wrong):
    with pytest.raises(TooLarge):
        checked(b"".join(before) + wrong, cuts, AnswerSizes(200, most_elements=100))


def test_a_line_without_an_end_is_found():
    sizes = AnswerSizes(1 << 30)
    for _ in range(65):
        sizes.check(b"-" * 1_000)
    with pytest.raises(TooLarge, match="a line has more than"):
        sizes.check(b"-" * 1_000)


@pytest.mark.long
@given(seed=st.integers(0, 1 << 32))
def test_a_claim_to_a_redis_that_lies_gets_a_grant_or_fails(lying, seed):
    budget = {"most": -1, "lasts": True, "units": {"usd": part(take=1.0)}}

    async def run():
        lying.lie = lies_of(seed)
        ledgers = RedisLedgers(lying.url, f"seed{seed}")
        for _ in range(6):
            for name, parts in (("g", {"wanted": 8}), ("b", budget)):
                try:
                    grant = await ledgers.exchange(name, claim(**parts))
                    found = checked_grant(grant, 8, [], ["usd"] if name == "b" else [])
                except CoordinationFailed:
                    continue
                assert -1 <= found.places <= 8
                assert name == "g" or found.units[0][0] >= 0
        lying.lie = None
        await ledgers.close()

    asyncio.run(asyncio.wait_for(run(), 60))


async def test_a_conflict_that_fills_the_log_is_no_grant(lying):
    text = json.dumps({"conflict": "x" * 100_000}).encode()
    lying.lie = lambda name, answer: Raw(b"$%d\r\n%b\r\n" % (len(text), text)) if name == b"EVALSHA" else answer
    ledgers = RedisLedgers(lying.url, "conflict")
    with pytest.raises(CoordinationFailed, match="conflict is no text, or a long one"):
        await ledgers.exchange("g", claim())
    lying.lie = None
    await ledgers.close()
