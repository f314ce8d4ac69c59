"""Ledgers: what members get of a limit that they share. The Lua script of Redis answers as the ledger in memory."""

import asyncio
import contextlib
import copy
import itertools
import json
import math
import random
import tempfile
from urllib.parse import unquote, urlsplit

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from tests.udf_server.redis_process import with_redis
from udf_server.limits.sharing.claims import CoordinationFailed
from udf_server.limits.sharing.ledger import LEASE_SECONDS, Ledger, ahead_seconds
from udf_server.limits.sharing.ledgers import LINE_BYTES, LedgerServer, RedisLedgers, ledgers_from_url
from udf_server.limits.sharing.redis_script import SCRIPT
from udf_server.limits.sharing.window import SLOTS

numbers = itertools.count(1)


def claim(member="a", **given):
    return {
        "member": member, "number": next(numbers), "fresh": "e1", "epoch": "", "settings": "max-concurrency = 8",
        "lasts": False, "leave": False, "most": 8, "ceiling": 0, "wanted": 0, "spare": 0, "rates": [], "pause": 0.0,
        "units": {}, "rows": 0, "failed": 0, **given,
    }  # fmt: skip


def rate(take=0.0, **given):
    return {
        "amount": 10.0, "seconds": 1, "burst": None, "settled": [], "back": [], "keep": 0.01, "take": take,
        "least": min(take, 1.0), "ahead": 0.0, **given,
    }  # fmt: skip


# Places.


def test_members_that_want_all_get_equal_shares_once_the_first_one_has_given_up_its_own():
    ledger = Ledger()
    assert ledger.exchange(claim("a", wanted=20), 0.0)["places"] == 8
    assert ledger.exchange(claim("b", wanted=20), 0.1)["places"] == 0
    # It is told to use four; until it says that it does, nobody else gets them.
    assert ledger.exchange(claim("a", wanted=20, ceiling=8), 0.2)["places"] == 4
    assert ledger.exchange(claim("b", wanted=20), 0.3)["places"] == 0
    assert ledger.exchange(claim("a", wanted=20, ceiling=4), 0.4)["places"] == 4
    assert ledger.exchange(claim("b", wanted=20), 0.5)["places"] == 4


def test_a_member_that_wants_little_leaves_the_rest_to_others():
    ledger = Ledger()
    assert ledger.exchange(claim("a", wanted=2), 0.0)["places"] == 2
    assert ledger.exchange(claim("b", wanted=20), 0.1)["places"] == 6


def test_what_nobody_wants_is_spare_until_somebody_wants_it():
    ledger = Ledger()
    assert ledger.exchange(claim("a", wanted=2, spare=4), 0.0)["places"] == 6
    assert ledger.exchange(claim("b", wanted=20), 0.1)["places"] == 2
    assert ledger.exchange(claim("a", wanted=2, spare=4, ceiling=6), 0.2)["places"] == 2


def test_one_permit_goes_from_member_to_member():
    ledger, had = Ledger(), dict.fromkeys("abc", 0)
    places = dict.fromkeys("abc", 0)
    for step in range(300):
        for member in "abc":
            given = claim(member, most=1, wanted=5, ceiling=places[member])
            places[member] = ledger.exchange(given, step * 0.05)["places"]
            had[member] += places[member]
            assert sum(places.values()) <= 1
    assert min(had.values()) > 50


def test_a_member_that_is_silent_loses_its_places_when_its_lease_ends():
    ledger = Ledger()
    ledger.exchange(claim("dead", wanted=8), 0.0)
    assert ledger.exchange(claim("a", wanted=8), LEASE_SECONDS - 0.1)["places"] == 0
    assert ledger.exchange(claim("a", wanted=8), LEASE_SECONDS)["places"] == 8


def test_a_member_that_is_silent_loses_its_places_although_the_clock_was_set_back():
    ledger = Ledger()
    assert ledger.exchange(claim("a", wanted=20), 10_000.0)["places"] == 8
    ledger.exchange(claim("b", wanted=20), 100.0)
    assert ledger.exchange(claim("b", wanted=20), 100.0 + 2 * LEASE_SECONDS)["places"] == 8


def test_a_ledger_that_was_lost_gives_nothing_new_until_its_members_are_back():
    ledger = Ledger(may_be_lost=True)  # Redis has failed over to a copy that has nothing
    assert ledger.exchange(claim("a", epoch="old", wanted=8, ceiling=5), 0.0)["places"] == 5
    assert ledger.exchange(claim("b", epoch="old", wanted=8, ceiling=3), 0.5)["places"] == 3
    assert ledger.exchange(claim("a", epoch="e1", wanted=8, ceiling=5), LEASE_SECONDS)["places"] == 4


def test_a_new_member_that_finds_no_ledger_gets_nothing_until_leases_of_a_lost_one_have_ended():
    ledger = Ledger(may_be_lost=True)
    assert ledger.exchange(claim("new", wanted=8), 0.0)["places"] == 0
    # This one had no answer for some time, and its calls go on.
    assert ledger.exchange(claim("old", epoch="old", wanted=8, ceiling=8), 4.0)["places"] <= 8
    assert ledger.exchange(claim("new", epoch="e1", wanted=8), LEASE_SECONDS)["places"] == 0
    assert ledger.exchange(claim("old", epoch="e1", wanted=2, ceiling=2), LEASE_SECONDS + 0.1)["places"] == 2
    assert ledger.exchange(claim("new", epoch="e1", wanted=8), LEASE_SECONDS + 0.2)["places"] == 6


def test_a_redis_that_takes_over_with_an_older_copy_gives_nothing_new_until_leases_that_it_lacks_have_ended():
    ledger = Ledger()
    assert ledger.exchange(claim("a", wanted=2), 0.0, "first")["places"] == 2
    older = copy.deepcopy(ledger)
    assert ledger.exchange(claim("b", wanted=6), 0.1, "first")["places"] == 6
    # The copy does not know of b, but of another Redis.
    assert older.exchange(claim("a", epoch="e1", wanted=8, ceiling=2, fresh="e2"), 0.2, "second")["places"] == 2
    assert older.exchange(claim("a", epoch="e2", wanted=8, ceiling=2), 5.1, "second")["places"] == 2
    assert older.exchange(claim("b", epoch="e1", wanted=6, ceiling=6), 5.15, "second")["places"] <= 6
    assert older.exchange(claim("a", epoch="e2", wanted=8, ceiling=2), 5.3, "second")["places"] == 2


def test_tokens_that_another_redis_has_granted_are_not_taken_back():
    ledger = Ledger()
    ledger.exchange(claim("a", rates=[rate(4.0)]), 0.0, "first")
    late = claim("b", epoch="e1", fresh="e2", rates=[rate(0.0, back=[[0, 4.0]])])
    assert ledger.exchange(late, 0.5, "second")["epoch"] == "e2"
    assert ledger.exchange(claim("a", rates=[rate(10.0)]), 0.6, "second")["rates"] == [[6.0, 0.0]]


@given(st.randoms(use_true_random=False), st.integers(1, 12), st.integers(1, 5))
def test_the_sum_of_places_never_exceeds_the_limit(draw, most, members):
    ledger, places, in_use = Ledger(), [0] * members, [0] * members
    now = 0.0
    for _ in range(60):
        now += draw.random() * 0.3
        member = draw.randrange(members)
        in_use[member] = draw.randint(0, max(places[member], in_use[member]))
        given = claim(
            str(member), most=most, wanted=in_use[member] + draw.randint(0, 9), spare=draw.randint(0, 3),
            ceiling=max(places[member], in_use[member]),
        )  # fmt: skip
        granted = ledger.exchange(given, now)["places"]
        if draw.random() < 0.9:  # otherwise the answer is lost
            places[member] = granted
        assert sum(max(pair) for pair in zip(places, in_use, strict=True)) <= most


# Settings.


def test_other_settings_are_refused_while_a_member_with_the_first_ones_is_alive():
    ledger = Ledger()
    ledger.exchange(claim("a"), 0.0)
    other = claim("b", settings="max-concurrency = 16", most=16, wanted=16)
    assert ledger.exchange(other, 1.0) == {"conflict": "max-concurrency = 8"}
    ledger.exchange(claim("a", leave=True), 2.0)
    assert ledger.exchange(other, 2.1)["places"] == 16


# Rates.


@given(st.randoms(use_true_random=False), st.integers(1, 3))
def test_no_window_has_more_than_its_amount_however_late_tokens_are_spent(draw, members):
    ledger, now, spent = Ledger(), 0.0, []
    for _ in range(80):
        now += draw.choice([0.003, 0.02, 0.2, 0.9]) * draw.random()
        take = draw.randint(0, 8)
        given = rate(float(take), ahead=draw.choice([0.0, 4.0]))
        given["keep"] = draw.choice([0.01, 0.02, 0.5])
        granted, ahead = ledger.exchange(claim(str(draw.randrange(members)), rates=[given]), now)["rates"][0]
        kept = max(ahead_seconds(1), given["keep"])
        spent += [(now + given["keep"] * draw.random(), granted), (now + kept * draw.random(), ahead)]
    for begin, _ in spent:
        assert sum(amount for when, amount in spent if begin <= when < begin + 1.0) <= 10.0 + 1e-9


@given(st.randoms(use_true_random=False))
def test_no_window_has_more_than_its_amount_whenever_tokens_come_back(draw):
    ledger, now, held, spent = Ledger(), 0.0, [], []
    for _ in range(60):
        now += draw.choice([0.003, 0.02, 0.2, 0.9]) * draw.random()
        draw.shuffle(held)
        back = [[slot, amount] for slot, amount in held[: draw.randint(0, 3)]]
        del held[: len(back)]
        given = rate(float(draw.randint(0, 8)), back=back)
        granted, _ = ledger.exchange(claim(epoch="e1", rates=[given]), now)["rates"][0]
        if granted:
            unspent = draw.choice([0.0, 0.5, 1.0]) * granted
            spent.append((now, granted - unspent))
            held.append((math.floor(now * SLOTS), unspent))  # perhaps it comes back after it is out of the window
    for begin, _ in spent:
        assert sum(amount for when, amount in spent if begin <= when < begin + 1.0) <= 10.0 + 1e-9


def test_tokens_come_back_when_they_are_not_spent_and_estimates_are_settled():
    ledger = Ledger()
    assert ledger.exchange(claim(rates=[rate(10.0)]), 0.0)["rates"] == [[10.0, 0.0]]
    given = claim(epoch="e1", rates=[rate(3.0, back=[[0, 4.0]])])
    assert ledger.exchange(given, 0.1)["rates"] == [[3.0, 0.0]]
    # The calls have cost three more than was estimated: nothing is left.
    assert ledger.exchange(claim(rates=[rate(1.0, settled=[[math.inf, 3.0]])]), 0.2)["rates"] == [[0.0, 0.0]]


@pytest.mark.parametrize(("epoch", "when"), [("e0", 0.5), ("e1", 1.2)], ids=["of a lost ledger", "out of the window"])
def test_tokens_that_are_not_counted_any_more_are_not_taken_from_others(epoch, when):
    ledger = Ledger()
    ledger.exchange(claim(rates=[rate(0.0)]), 0.0)
    assert ledger.exchange(claim("b", rates=[rate(10.0)]), when)["rates"] == [[10.0, 0.0]]
    late = claim("a", epoch=epoch, rates=[rate(5.0, back=[[0, 5.0]])])
    assert ledger.exchange(late, when)["rates"] == [[0.0, 0.0]]


def test_a_claim_that_arrives_twice_or_late_changes_nothing():
    ledger = Ledger()
    first = claim("a", wanted=2, rates=[rate(2.0)])
    later = claim("a", wanted=6, rates=[rate(3.0)])
    assert ledger.exchange(first, 0.0)["places"] == 2
    assert ledger.exchange(later, 0.1)["places"] == 6
    assert [ledger.exchange(each, 0.2) for each in (first, later)] == [{"stale": True}] * 2
    assert ledger.windows[0].used(0.2) == 5.0
    assert ledger.exchange(claim("b", wanted=8, rates=[rate(9.0)]), 0.3)["places"] == 2
    assert ledger.windows[0].used(0.3) == 10.0, "only the last claim has taken units"


def test_what_claims_without_an_answer_have_settled_counts_once():
    ledger = Ledger()
    one = claim("a", number=1, epoch="e1", rates=[rate(settled=[[1, 2.0]])])
    ledger.exchange(one, 0.0)  # the answer is lost
    both = claim("a", number=2, epoch="e1", rates=[rate(settled=[[1, 2.0], [2, 3.0]])])
    ledger.exchange(both, 0.1)
    assert ledger.exchange(claim("b", rates=[rate(9.0)]), 0.2)["rates"] == [[5.0, 0.0]]


def test_a_large_cost_waits_for_its_whole_amount():
    ledger = Ledger()
    ledger.exchange(claim(rates=[rate(6.0)]), 0.0)
    assert ledger.exchange(claim(rates=[rate(8.0, least=8.0)]), 0.5)["rates"] == [[0.0, 0.0]]
    assert ledger.exchange(claim(rates=[rate(8.0, least=8.0)]), 1.1)["rates"] == [[8.0, 0.0]]


def test_a_service_that_asks_for_a_pause_gets_it_from_every_member():
    ledger = Ledger()
    ledger.exchange(claim("a", rates=[rate()], pause=3.0), 0.0)
    grant = ledger.exchange(claim("b", rates=[rate(1.0)]), 1.0)
    assert grant["rates"] == [[0.0, 0.0]]
    assert grant["paused"] == pytest.approx(2.0)
    assert ledger.exchange(claim("b", rates=[rate(1.0)]), 3.1)["rates"] == [[1.0, 0.0]]


# A clock that is set back, as when a machine's time is corrected or a replica whose clock is behind takes over.


@pytest.mark.parametrize("back", [0.5, 40.0, 86_400.0])
def test_a_member_that_is_gone_loses_its_places_in_time_although_the_clock_was_set_back(back):
    ledger, now = Ledger(), 1e6
    ledger.exchange(claim("dead", wanted=8), now)
    ledger.exchange(claim("a", wanted=8), now + 1.0)
    now -= back
    assert ledger.exchange(claim("a", wanted=8), now + 1.0)["places"] == 0, "perhaps it is only slow"
    assert ledger.exchange(claim("a", wanted=8), now + LEASE_SECONDS + 0.1)["places"] == 8


@given(st.randoms(use_true_random=False), st.sampled_from([0.003, 0.7, 40.0]))
def test_no_window_has_more_than_its_amount_and_none_lasts_because_the_clock_was_set_back(draw, back):
    ledger, now, late, spent = Ledger(), 1e6, 0.0, []
    for _ in range(60):
        now += draw.choice([0.003, 0.02, 0.2, 0.9]) * draw.random()
        late += back if draw.random() < 0.1 else 0.0
        [[granted, _]] = ledger.exchange(claim(rates=[rate(float(draw.randint(0, 8)))]), now - late)["rates"]
        spent.append((now, granted))
    for begin, _ in spent:
        assert sum(amount for when, amount in spent if begin <= when < begin + 1.0) <= 10.0 + 1e-9
    ledger.exchange(claim(pause=0.5), now - late)
    late += back
    assert ledger.exchange(claim(rates=[rate(1.0)]), now - late)["paused"] <= 0.5
    assert ledger.exchange(claim(rates=[rate(10.0)]), now - late + 1.1)["rates"] == [[10.0, 0.0]]


# Redis and sockets.


def drawn_settled(draw):
    return [[next(numbers) - draw.choice([0, 0, 9]), float(draw.randint(0, 2))] for _ in range(draw.randint(0, 2))]


def part(spent=0.0, held=0.0, take=0.0, least=1.0, ahead=0.0, amount=10.0):
    return {"amount": amount, "spent": spent, "held": held, "take": take, "least": least, "ahead": ahead}


def drawn_claim(draw, fixed, bursts, units):
    return claim(
        draw.choice("abcd"), epoch=draw.choice(["", "e1", "e1", "e0"]), leave=draw.random() < 0.05,
        ceiling=draw.randint(0, 6), wanted=draw.randint(0, 12), spare=draw.randint(0, 4),
        pause=draw.choice([0.0, 0.0, 0.0, 0.7]),
        rates=[
            rate(float(draw.randint(0, 9)), amount=amount, seconds=seconds, settled=drawn_settled(draw), burst=burst,
                 keep=draw.choice([0.01, 0.03, 0.8]), least=float(draw.randint(0, 2)), ahead=float(draw.choice([0, 4])))
            for amount, seconds, burst in ((20.0, 1, bursts[0]), (90.0, 60, bursts[1]))
        ],
        units={
            unit: part(
                draw.random() * 2, draw.random(), draw.choice([0.0, draw.random() * 4]), draw.random(),
                draw.choice([0.0, draw.random()]),
            )
            for unit in units
        },
        rows=draw.randint(0, 9), failed=draw.randint(0, 3), **fixed,
    )  # fmt: skip


def flat(value):
    """The numbers of the parts of a grant, in the order of their names."""
    if isinstance(value, dict):
        return list(itertools.chain(*(flat(value[name]) for name in sorted(value))))
    return list(itertools.chain(*map(flat, value))) if isinstance(value, list) else [value]


@with_redis
@pytest.mark.parametrize("seed", range(8))
def test_the_script_grants_what_the_ledger_grants(redis_process, seed):
    # The script reads Redis's clock; here the test gives the time, so that both see the same one.
    script = SCRIPT.replace("redis.call('TIME')", "{ARGV[2], ARGV[3]}")
    assert script != SCRIPT
    with_run = script.replace("redis.pcall('INFO', 'server')", "ARGV[4]")
    assert with_run != script
    draw, ledger, now = random.Random(seed), Ledger(may_be_lost=True), 1_000.0
    fixed = {"most": draw.choice([-1, 5, 30]), "lasts": seed % 2 > 0}
    bursts, units = draw.choice([(None, None), (2.03, 11.07), (5.01, None)]), ("calls", "usd") if seed % 2 else ()
    with redis.Redis.from_url(redis_process.url) as client:
        for step in range(400):
            now = round(now + draw.choice([0.01, 0.1, 0.4, 2.0]) * draw.random(), 4)
            if back := step % 53 == 52:  # the clock is set back
                now = round(now - draw.choice([0.3, 2.0, 40.0]), 4)
            given = drawn_claim(draw, fixed, bursts, units)
            for each in given["rates"]:
                slot = math.floor((now - draw.choice([0.0, 0.1, 1.05]) * each["seconds"]) / each["seconds"] * SLOTS)
                each["back"] = [[slot + number, float(draw.randint(1, 2))] for number in range(draw.randint(0, 2))]
            if step % 97 == 96 and not back:
                given["settings"] = "other"
            if step % 11 == 0 and not back:
                given["number"] -= draw.choice([1, 4, 30])
            seconds = math.floor(now)
            run, up = f"run{step // 130}", seed + step % 130
            about = f"run_id:{run}\r\nuptime_in_seconds:{up}\r\n"
            arguments = [json.dumps(given), 1_700_000_000 + seconds, round((now - seconds) * 1e6), about]
            theirs = json.loads(client.eval(with_run, 1, "ledger", *arguments))
            mine = ledger.exchange(given, now, run, up)
            assert set(theirs) == set(mine), (seed, step)
            for name, value in mine.items():
                found, expected = flat(theirs[name]), flat(value)
                if not isinstance(value, str | bool):
                    expected = pytest.approx(expected, abs=1e-3)
                assert found == expected, (seed, step, name)


@with_redis
async def test_a_redis_that_is_away_is_an_error_without_its_password(redis_process):
    ledgers = RedisLedgers(redis_process.url, "n")
    assert (await ledgers.exchange("f@1", claim(wanted=3, epoch="e0", ceiling=3)))["places"] == 3
    redis_process.stop()
    with pytest.raises(CoordinationFailed) as caught:
        await ledgers.exchange("f@1", claim())
    assert "pa55" not in str(caught.value)
    redis_process.start()
    assert (await ledgers.exchange("f@1", claim(wanted=3, epoch="e0", ceiling=3)))["places"] == 3
    await ledgers.close()


@with_redis
async def test_a_redis_that_was_started_with_an_older_copy_gives_nothing_new_at_first(redis_process):
    async with contextlib.AsyncExitStack() as stack:
        ledgers = RedisLedgers(redis_process.url, "n")
        stack.push_async_callback(ledgers.close)
        await ledgers.exchange("f@1", claim("a", epoch="e0", wanted=2, ceiling=2))
        with redis.Redis.from_url(redis_process.url) as client:
            [key] = client.keys()
            older = client.get(key)
            # A place for b, which the copy lacks.
            await ledgers.exchange("f@1", claim("b", epoch="e0", wanted=1, ceiling=1))
        redis_process.stop()
        with pytest.raises(CoordinationFailed):
            await ledgers.exchange("f@1", claim("a"))
        redis_process.start()
        with redis.Redis.from_url(redis_process.url) as client:
            client.set(key, older)
        grant = await ledgers.exchange("f@1", claim("a", fresh="e2", epoch="e1", wanted=8, ceiling=2))
        assert (grant["places"], grant["epoch"]) == (2, "e2")


async def test_workers_of_a_host_share_ledgers_by_a_socket():
    server = LedgerServer()
    one, other = (ledgers_from_url(server.url, "") for _ in range(2))
    assert (await one.exchange("f@1", claim("a", wanted=5)))["places"] == 5
    assert (await other.exchange("f@1", claim("b", wanted=5)))["places"] == 3
    grants = await asyncio.gather(*(other.exchange(f"g{number}@1", claim(wanted=number)) for number in range(8)))
    assert [grant["places"] for grant in grants] == list(range(8))
    for each in (one, other):
        await each.close()
    server.close()
    with pytest.raises(CoordinationFailed):
        await one.exchange("f@1", claim("a"))


async def test_workers_share_ledgers_where_the_path_of_a_socket_in_tmpdir_would_be_too_long(tmp_path, monkeypatch):
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    server = LedgerServer()
    ledgers = ledgers_from_url(server.url, "")
    assert (await ledgers.exchange("f@1", claim("a", wanted=5)))["places"] == 5
    await ledgers.close()
    server.close()


class Peer:
    """A parent process that answers each claim with the same bytes."""

    def __init__(self, path, answer):
        self.url = f"parent://{path}"
        self._path, self._answer = str(path), answer

    async def __aenter__(self):
        async def serve(reader, writer):
            self._serving.append(asyncio.current_task())
            with contextlib.suppress(OSError):
                while await reader.readline():
                    writer.write(self._answer)
                    await writer.drain()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

        self._serving = []
        self._server = await asyncio.start_unix_server(serve, self._path)
        return self

    async def __aexit__(self, *_):
        self._server.close()
        await asyncio.gather(*self._serving)


@pytest.mark.parametrize(
    "answer", [b"x" * (LINE_BYTES + 100) + b"\n", b"{\n", b"\xff\n", b"[]\n"], ids=["long", "cut", "text", "list"]
)
async def test_an_answer_that_is_no_grant_is_an_error_of_that_claim(tmp_path, answer):
    async with Peer(tmp_path / "ledgers", answer) as peer:
        ledgers = ledgers_from_url(peer.url, "")
        for _ in range(2):
            with pytest.raises(
                CoordinationFailed, match=r"does not answer|the answer is no grant: expected a JSON obj"
            ):
                await ledgers.exchange("f@1", claim())
        await ledgers.close()


ANSWERS = [
    b"$-1\r\n", b":5\r\n", b"*1\r\n$2\r\n{}\r\n", b"$2\r\n[]\r\n", b"$3\r\nNaN\r\n", b"+OK\r\n", b"-ERR no\r\n",
    b"$x\r\n", b"$-7\r\n", b"*-9\r\n", b"*1\r\n" * 5_000, b":x\r\n", b"%1\r\n*0\r\n:1\r\n", b"\xff\r\n",
    b"HTTP/1.1 400\r\n", b"\r\n",
    b"$21\r\n" + b'{"conflict":{"a": 1}}' + b"\r\n", b"$100000\r\n" + b"[" * 100_000 + b"\r\n",
]  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: repr(answer[:24]))
async def test_a_redis_that_answers_something_else_is_an_error_of_that_claim(answer):
    """It answers the commands with which a client begins, and then the script with these bytes."""

    serving = []

    async def serve(reader, writer):
        serving.append(asyncio.current_task())
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                words = b""
                for _ in range(int(line[1:])):
                    words += await reader.readexactly(int((await reader.readline())[1:]) + 2)
                writer.write(answer if words.startswith(b"EVAL") else b"+OK\r\n")
                await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    ledgers = RedisLedgers(f"redis://127.0.0.1:{port}?protocol=2", "n")
    with pytest.raises(CoordinationFailed):
        await ledgers.exchange("f@1", claim())
    await ledgers.close()
    server.close()
    await asyncio.gather(*serving)


@pytest.mark.parametrize("line", [b"{\n", b"\xff\n", b"1\n", b"x" * (LINE_BYTES + 100) + b"\n"])
async def test_a_worker_that_sends_no_claim_loses_only_its_own_connection(line, caplog):
    server = LedgerServer()
    good = ledgers_from_url(server.url, "")
    assert (await good.exchange("f@1", claim("a", wanted=5)))["places"] == 5
    reader, writer = await asyncio.open_unix_connection(unquote(urlsplit(server.url).path))
    writer.write(line)
    with contextlib.suppress(ConnectionError):  # it was closed with bytes that nobody had read
        assert await reader.read() == b""
    writer.close()
    assert (await good.exchange("f@1", claim("a", wanted=6, ceiling=5)))["places"] == 6
    await good.close()
    server.close()
    assert not [record for record in caplog.records if record.exc_info]
