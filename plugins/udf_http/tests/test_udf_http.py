"""The lookups run against real HTTP servers on this machine."""

import asyncio
import contextlib
import importlib.metadata
import logging
from pathlib import Path

import pytest
from aiohttp import encode_basic_auth, web
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from remote_udf.errors import StreamError
from udf_http import http_get, http_get_json
from udf_http.client import HttpClient, url_below
from udf_http.settings import HttpSettings
from udf_server.serving.config import load_config
from udf_server.testing import FunctionEnvironment

SECRET = "s3cr3t-t0k3n"


@contextlib.asynccontextmanager
async def service(answer):
    """Runs a server that answers every GET with `answer(request)`; yields its base URL."""
    app = web.Application()
    app.router.add_get("/v1/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1/"
    finally:
        await runner.cleanup()


@pytest.fixture
def configured(monkeypatch):
    def configure(base, **settings):
        monkeypatch.setenv("UDF_HTTP_BASE_URL", base)
        for name, value in settings.items():
            monkeypatch.setenv(f"UDF_HTTP_{name.upper()}", str(value))

    return configure


async def run(function, paths, **options):
    async with FunctionEnvironment() as environment:
        return await environment.run(function, paths, **options)


async def test_a_path_is_looked_up_below_the_base_url(configured):
    async def answer(request):
        return web.Response(text=f"{request.path_qs} für {request.headers.get('Authorization')}")

    async with service(answer) as base:
        configured(base.removesuffix("/"))
        result = await run(http_get, ["a/b?c=1", "/d", "2010-01-01T10:00", "x:y", "q%2Fr", None])
    assert result.to_pylist() == [
        "/v1/a/b?c=1 für None",
        "/v1/d für None",
        "/v1/2010-01-01T10:00 für None",
        "/v1/x:y für None",
        "/v1/q%2Fr für None",
        None,
    ]


async def test_what_is_not_there_is_null_and_what_is_refused_is_an_error_of_its_row(configured):
    async def answer(request):
        status = int(request.match_info["tail"])
        return web.Response(status=status, text="why", headers={"Location": "/v1/200"} if status == 302 else None)

    async with service(answer) as base:
        configured(base)
        result = await run(http_get, ["200", "404", "410", "403", "302"])
    assert result.values.to_pylist() == ["why", None, None, None, None]
    assert {row: error.message.splitlines()[0] for row, error in result.errors.items()} == {
        3: "HttpError: GET 403: 403 Forbidden: why",
        4: "HttpError: GET 302: 302 Found: why",
    }
    assert [error.attempts for error in result.errors.values()] == [1, 1]


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
async def test_a_service_that_recovers_is_asked_again(configured, status):
    asked = []

    async def answer(request):
        asked.append(request.path)
        return web.Response(status=status if len(asked) < 3 else 200, text="done")

    async with service(answer) as base:
        configured(base)
        result = await run(http_get, ["x"], initial_delay="1 ms", max_delay="1 ms")
    assert result.to_pylist() == ["done"]
    assert len(asked) == 3


async def test_retry_after_is_waited_for(configured):
    times = []

    async def answer(request):
        times.append(asyncio.get_running_loop().time())
        return web.Response(status=429 if len(times) == 1 else 200, headers={"Retry-After": "1"})

    async with service(answer) as base:
        configured(base)
        await run(http_get, ["x"], initial_delay="1 ms", max_delay="1 ms")
    assert times[1] - times[0] >= 1


async def test_a_connection_that_breaks_and_a_server_that_is_not_there_are_retryable(configured):
    async def answer(request):
        request.transport.abort()

    async with service(answer) as base:
        configured(base)
        broken = await run(http_get, ["x"], max_attempts=2, initial_delay="1 ms")
    absent = await run(http_get, ["x"], max_attempts=2, initial_delay="1 ms")
    for result in (broken, absent):
        assert result.errors[0].attempts == 2
        assert result.errors[0].retryable
        assert "RetryableError: GET x: " in result.errors[0].message


async def test_an_answer_that_does_not_come_is_waited_for_no_longer_than_allowed(configured):
    never = asyncio.Event()

    async def answer(request):
        await never.wait()
        return web.Response()

    async with service(answer) as base:
        configured(base, attempt_seconds=0.05)
        result = await run(http_get, ["x"], max_attempts=2, initial_delay="1 ms")
        never.set()
    assert result.errors[0].message.splitlines()[0] == "RetryableError: GET x: no answer in time"


@pytest.mark.parametrize("path", ["../admin", "a/../../admin", "%2e%2e/admin", "a%2f..%2f..%2fadmin", "a#b"])
async def test_a_path_cannot_leave_the_base_url(configured, path):
    async def answer(request):
        pytest.fail(f"{request.path} was asked for")

    async with service(answer) as base:
        configured(base)
        result = await run(http_get, [path])
    assert f"ValueError: path {path!r} " in result.errors[0].message


_DOTS = st.lists(st.sampled_from([".", "%2e", "%2E"]), min_size=1, max_size=2).map("".join)
_SEGMENTS = st.text(st.sampled_from("ab.~%41;+é"), max_size=4).map(lambda text: text.replace("%", "%25"))
_SLASHES = st.sampled_from(["/", "%2f", "%2F", "\\", "%5c", "%5C"])


@given(
    before=st.lists(_SEGMENTS, max_size=2), dots=_DOTS, after=st.lists(_SEGMENTS, max_size=2), slash=_SLASHES,
    suffix=st.sampled_from(["", ";v=1", "\t", "?q=1"]),
)  # fmt: skip
def test_a_segment_of_dots_is_refused_in_every_spelling(before, dots, after, slash, suffix):
    path = slash.join([*before, dots + suffix, *after])
    with pytest.raises(ValueError, match="it would address another resource"):
        url_below(URL("https://lookup.example/v1/"), path)


@given(segments=st.lists(_SEGMENTS.filter(lambda text: text.partition(";")[0] not in (".", "..")), min_size=1))
def test_other_segments_are_sent_as_they_are(segments):
    path, base = "/".join(segments).lstrip("/"), URL("https://lookup.example/v1/")
    found = url_below(base, path + "?up=../..")
    assert found.raw_path == URL(f"https://lookup.example/v1/{path}").raw_path
    assert found.raw_path.count("/") == 2 + path.count("/")
    assert found.query["up"] == "../.."


async def test_the_value_of_a_row_does_not_get_another_resource(configured):
    async def answer(request):
        return web.Response(text=request.rel_url.raw_path)

    async with service(answer) as base:
        configured(base)
        result = await run(http_get, [f"customers/{value}" for value in ("7", "..", "a..b", ".", "%2e%2E", "...")])
    assert sorted(result.errors) == [1, 3, 4]
    assert all(error.attempts == 1 and not error.retryable for error in result.errors.values())
    assert result.values.to_pylist()[::2][:2] == ["/v1/customers/7", "/v1/customers/a..b"]


@pytest.mark.parametrize("path", ["http://example.invalid/x", "//example.invalid/x", "@example.invalid", "\\\\example"])
async def test_a_path_cannot_name_another_host(configured, path):
    async def answer(request):
        return web.Response(text="here")

    async with service(answer) as base:
        configured(base)
        assert (await run(http_get, [path])).to_pylist() == ["here"]


async def test_an_answer_that_is_too_large_is_an_error(configured):
    async def answer(request):
        return web.Response(body=b"x" * int(request.match_info["tail"]))

    async with service(answer) as base:
        configured(base, max_bytes=1000)
        result = await run(http_get, ["1000", "1001", "9000000"])
    assert result.values[0].as_py() == "x" * 1000
    assert [error.message.splitlines()[0] for error in result.errors.values()] == [
        "HttpError: GET 1001: the answer is larger than 1000 bytes",
        "HttpError: GET 9000000: the answer is larger than 1000 bytes",
    ]


async def test_json_is_checked_and_left_as_it_is(configured):
    bodies = {"good": '{"a": 1.10, "b": [null]}', "bad": "{", "nan": "NaN", "number": "12345678901234567890"}

    async def answer(request):
        body = bodies.get(request.match_info["tail"])
        return web.Response(text=body) if body else web.Response(status=404)

    async with service(answer) as base:
        configured(base)
        result = await run(http_get_json, ["good", "bad", "nan", "number", "absent"])
    assert result.values.to_pylist() == [bodies["good"], None, None, bodies["number"], None]
    assert list(result.errors) == [1, 2]
    assert "HttpError: GET bad: the answer is not JSON" in result.errors[1].message


async def test_bytes_that_are_no_text_are_an_error(configured):
    async def answer(request):
        return web.Response(body=b"\xff\xfe\xff", content_type="text/plain", charset="utf-8")

    async with service(answer) as base:
        configured(base)
        result = await run(http_get, ["x"])
    assert "HttpError: GET x: the answer is not text in utf-8" in result.errors[0].message


async def test_many_rows_are_in_flight_together(configured):
    waiting, everybody = [], asyncio.Event()

    async def answer(request):
        waiting.append(request)
        if len(waiting) == 200:
            everybody.set()
        await everybody.wait()
        return web.Response(text="ok")

    async with service(answer) as base:
        configured(base)
        result = await run(http_get, [f"{i}" for i in range(200)], buffer_capacity=200, timeout="30 s")
    assert result.to_pylist() == ["ok"] * 200


@pytest.mark.parametrize("place", ["token", "base URL"])
async def test_credentials_are_sent_and_never_shown(configured, caplog, place):
    sent = []

    async def answer(request):
        sent.append(request.headers["Authorization"])
        return web.Response(status=401)

    caplog.set_level(logging.DEBUG)
    async with service(answer) as base:
        if place == "token":
            configured(base, token=SECRET)
        else:
            configured(base.replace("http://", f"http://user:{SECRET}@"))
        refused = await run(http_get, ["x"])
    gone = await run(http_get, ["x"], max_attempts=1)
    assert sent == [f"Bearer {SECRET}" if place == "token" else encode_basic_auth("user", SECRET)]
    settings = HttpSettings.from_environment()
    client = HttpClient(settings)
    await client.close()
    for error in (refused.errors[0], gone.errors[0]):
        assert SECRET not in error.message + error.traceback
    assert SECRET not in repr(settings) + repr(client) + caplog.text


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("BASE_URL", "", "UDF_HTTP_BASE_URL is not set"),
        ("BASE_URL", f"ftp://user:{SECRET}@x/", "UDF_HTTP_BASE_URL is not an http or https URL with a host"),
        ("BASE_URL", "http://x/?a=1", "UDF_HTTP_BASE_URL has a query"),
        ("TOKEN", f"{SECRET}\nX: y", "UDF_HTTP_TOKEN is not a bearer token"),
        ("CONNECTIONS", "many", "UDF_HTTP_CONNECTIONS is not a whole number greater than zero"),
        ("ATTEMPT_SECONDS", "nan", "UDF_HTTP_ATTEMPT_SECONDS is not a number greater than zero"),
        ("MAX_BYTES", "0", "UDF_HTTP_MAX_BYTES is not a whole number greater than zero"),
    ],
)
async def test_a_wrong_setting_is_named_and_not_shown(configured, monkeypatch, variable, value, message):
    configured("http://127.0.0.1/")
    monkeypatch.setenv(f"UDF_HTTP_{variable}", value)
    with pytest.raises(StreamError, match=message) as caught:
        await run(http_get, ["x"])
    assert caught.value.code == "OPEN_FAILED"
    assert SECRET not in str(caught.value) + caught.value.traceback


def test_the_guards_of_the_readme_are_settings_of_a_server(tmp_path):
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    (tmp_path / "server.toml").write_text(readme.partition("```toml\n")[2].partition("```")[0])
    guards = load_config(tmp_path / "server.toml", {}, {}).guards
    assert list(guards) == [http_get.spec.name]
    assert (guards["http_get"].max_concurrency, str(guards["http_get"].rate[0])) == (200, "100/second")


def test_the_installed_package_is_a_plugin():
    (point,) = importlib.metadata.entry_points(group="udf_server", name="http")
    assert [function.spec.name for function in point.load().udf_functions()] == ["http_get", "http_get_json"]
