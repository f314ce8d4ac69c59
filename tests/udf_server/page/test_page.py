"""The web UI: its content, its access rules, and calls that are tried on it."""

import asyncio
import base64
import dataclasses
import http.client
import json
import subprocess
import sys
import urllib.error
import urllib.request
from html.parser import HTMLParser
from pathlib import Path

import pytest

import udf_server as udf
from spark_client.base.budget import SessionBudget
from spark_client.base.security import Security
from spark_client.executor.stream.transport import transport_for
from tests.spark_client.scripted import call_of, chunk_of, everything, stream_of
from udf_server.base.errors import InvalidConfig
from udf_server.page.catalogue import added_up
from udf_server.security.access import hashed, new_token
from udf_server.serving.config import ServerConfig
from udf_server.serving.exposure import check_exposure

HOSTILE = "<script>alert(1)</script> \"quoted\" & 'single' </p></section>"


@udf.scalar(description=HOSTILE)
async def half(number: int) -> float:
    if number < 0:
        raise ValueError(f"<b>{number}</b> is negative")
    return number / 2


@udf.scalar(version="2")
def joined(one: str, *more: str) -> dict[int, str]:
    """One after the other.

    In order.
    """
    return dict(enumerate([one, *more]))


class Page(HTMLParser):
    """The text of a page, and its tags with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return "".join(self.words)


def ask(url, body=None, **headers):
    """Status, headers and text."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
        headers.setdefault("Content-Type", "application/json")
    request = urllib.request.Request(url, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


def tried(url, function, *arguments, **headers):
    status, _, text = ask(f"{url}/try", {"function": function, "arguments": list(arguments)}, **headers)
    said = json.loads(text)
    said.pop("seconds", None)
    return status, said


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def basic(token):
    return {"Authorization": f"Basic {base64.b64encode(f'me:{token}'.encode()).decode()}"}


@pytest.fixture
def tokens(tmp_path):
    """An access file: one token for all functions, one for `joined` alone."""
    every, few = new_token(), new_token()
    path = tmp_path / "access.toml"
    path.write_text(
        f'[all]\ntoken_sha256 = "{hashed(every)}"\n[few]\ntoken_sha256 = "{hashed(few)}"\nfunctions = ["join*"]\n'
    )
    return str(path), every, few


def test_the_page_has_every_function_with_its_documentation(serve):
    url = serve(half, joined).server.metrics_url
    status, headers, text = ask(f"{url}/")
    page = Page(text)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "half(number bigint) -> double" in page.text
    assert "joined(one string, *more string) -> map<bigint,string>" in page.text
    assert "One after the other.\n\nIn order." in page.text
    assert {"half@1", "joined@2"} <= {attrs.get("id") for _, attrs in page.tags}
    assert "version 2" in page.text


def test_what_a_plugin_says_is_text_and_nothing_else(serve):
    _, _, text = ask(f"{serve(half).server.metrics_url}/")
    page = Page(text)
    assert HOSTILE in page.text
    assert [attrs for tag, attrs in page.tags if tag == "script"] == [{"src": "page.js", "defer": None}]
    assert "alert" not in "".join(str(attrs) for _, attrs in page.tags)
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on") or name == "style"]


def test_nothing_comes_from_elsewhere(serve):
    url = serve(half).server.metrics_url
    for path in ("/", "/page.js", "/page.css", "/catalog.json"):
        status, headers, text = ask(url + path)
        assert status == 200
        policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["script-src"] == "'self'"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "//" not in text.replace("http://www.w3.org/2000/svg", "").replace("// ", "")


def test_statistics_are_those_of_the_metrics(serve):
    serving = serve(half)
    call = call_of(half, serving.target)
    stream = stream_of(call, transport_for(call.config))
    stream.submit(chunk_of([1, 2, -3]))
    everything(stream)
    stream.finish()
    url = serving.server.metrics_url
    (function,) = json.loads(ask(f"{url}/catalog.json")[2])["functions"]
    statistics = function["statistics"]
    assert (statistics["ok"], statistics["failed"], statistics["in_flight"]) == (2, 1, 0)
    assert statistics["row_count"] == 3 and statistics["row_seconds"] > 0
    assert statistics["errors"] == {"FUNCTION_ERROR": 1}
    text = Page(ask(f"{url}/")[2]).text
    assert "FUNCTION_ERROR 1: ValueError: <b>-3</b> is negative" in text
    assert statistics["texts"] == {"FUNCTION_ERROR": "ValueError: <b>-3</b> is negative"}


def test_statistics_of_processes_are_added_and_their_devices_are_listed():
    def one(ready, device, ok, **errors):
        statistics = {
            **dict.fromkeys(("failed", "skipped", "retries", "in_flight", "streams", "row_seconds", "row_count"), 1),
            **dict.fromkeys(("cache_hit", "cache_miss", "cache_shared", "cache_uncached"), 1),
            "ok": ok,
            **dict.fromkeys(("crowded", "result_waits", "rate_waits", "circuit_open"), 1),
            "errors": errors,
            "spent": {"tokens": ok},
            "texts": {code: f"{code} of {device}" for code in errors},
        }
        server = {"ready": ready, "processes": 1, "devices": [device]}
        callers = [{"caller": "etl", "function": "f@1", "spent": {"tokens": ok}}]
        budgets = [{"caller": "etl", "budget": "job 1", "spent": {"tokens": [ok, 100.0]}}]
        functions = [{"key": "f@1", "statistics": statistics}]
        return {"server": server, "functions": functions, "callers": callers, "budgets": budgets}

    total = added_up([one(False, "cuda:0", 3, A=1), one(True, "cuda:1", 4, A=1, B=2)])
    assert total["server"] == {"ready": True, "processes": 2, "devices": ["cuda:0", "cuda:1"]}
    statistics = total["functions"][0]["statistics"]
    assert (statistics["ok"], statistics["failed"], statistics["errors"]) == (7, 2, {"A": 2, "B": 2})
    assert statistics["spent"] == {"tokens": 7}
    assert statistics["texts"] == {"A": "A of cuda:1", "B": "B of cuda:1"}
    assert total["callers"] == [{"caller": "etl", "function": "f@1", "spent": {"tokens": 7}}]
    # Each process knows what all of them have spent.
    assert total["budgets"] == [{"caller": "etl", "budget": "job 1", "spent": {"tokens": [4, 100.0]}}]


@udf.scalar
async def priced(number: int, context: udf.CallContext) -> int:
    context.spend(usd=0.5)
    if number < 0:
        raise ValueError(f"{number} is secret")
    return number


@udf.scalar(name="priced", version="2")
async def dearer(number: int, context: udf.CallContext) -> int:
    context.spend(usd=2)
    return number


def spend(serving, function, numbers, security=None, **budget):
    """Call a function for a job with a budget, and return the job's id."""
    call = call_of(function, serving.target)
    bound = SessionBudget.of(budget, "on-error")
    config = dataclasses.replace(call.config, budget=bound, security=security or call.config.security)
    call = dataclasses.replace(call, config=config)
    stream = stream_of(call, transport_for(call.config))
    stream.submit(chunk_of(numbers))
    everything(stream)
    stream.finish()
    return bound.job[:8]


def test_the_page_shows_what_callers_and_jobs_have_spent_and_the_weights_of_versions(serve):
    serving = serve(priced, dearer, weights={"priced@2": 0.05})
    url = serving.server.metrics_url
    hidden = [attrs["id"] for tag, attrs in Page(ask(f"{url}/")[2]).tags if tag == "table" and "hidden" in attrs]
    assert hidden == ["callers", "budgets"], "nothing was spent"
    job = spend(serving, priced, range(10), usd=4, tokens=100)
    spend(serving, dearer, [0], usd=9)
    catalogue = json.loads(ask(f"{url}/catalog.json")[2])
    assert catalogue["callers"] == [
        {"caller": "", "function": "priced@1", "spent": {"usd": 4.0}},
        {"caller": "", "function": "priced@2", "spent": {"usd": 2.0}},
    ]
    [mine] = [each for each in catalogue["budgets"] if job in each["budget"]]
    assert mine["spent"] == {"usd": [4.0, 4.0], "tokens": [0.0, 100.0]}
    assert [each["facts"].get("weight") for each in catalogue["functions"]] == [None, "5 % of the jobs"]
    text = Page(ask(f"{url}/")[2]).text
    assert "Spent by caller" in text and "anyonepriced@14 usd" in text
    assert f"session {job}0 of 100 tokens, 4 of 4 usd" in text
    assert "weight5 % of the jobs" in text


def test_a_bearer_sees_what_its_own_calls_have_spent_and_why_they_failed(serve, tokens, tmp_path):
    path, every, _ = tokens
    other, file = new_token(), tmp_path / "token"
    file.write_text(every)
    with Path(path).open("a") as rules:
        rules.write(f'[other]\ntoken_sha256 = "{hashed(other)}"\n')
    serving = serve(priced, access_file=path)
    spend(serving, priced, [1, -2], Security(token_file=str(file)), usd=4)
    url = serving.server.metrics_url
    mine, theirs = (json.loads(ask(f"{url}/catalog.json", **bearer(token))[2]) for token in (every, other))
    assert [each["caller"] for each in mine["callers"] + mine["budgets"]] == ["all", "all"]
    assert (theirs["callers"], theirs["budgets"]) == ([], [])
    statistics = [each["functions"][0]["statistics"] for each in (mine, theirs)]
    assert [each["errors"] for each in statistics] == [{"FUNCTION_ERROR": 1}] * 2
    assert [each["texts"] for each in statistics] == [{"FUNCTION_ERROR": "ValueError: -2 is secret"}, {}]


def test_the_form_is_off_by_default(serve):
    url = serve(half).server.metrics_url
    assert "form" not in {tag for tag, _ in Page(ask(f"{url}/")[2]).tags}
    status, said = tried(url, "half", "3")
    assert status == 403
    assert "setting 'try_calls' is off" in said["error"]["message"]


def test_a_call_goes_the_way_of_all_calls(serve):
    serving = serve(half, joined, try_calls=True)
    url = serving.server.metrics_url
    page = Page(ask(f"{url}/")[2])
    assert {attrs["data-function"] for tag, attrs in page.tags if tag == "form"} == {"half@1", "joined@2"}
    assert tried(url, "half@1", "3") == (200, {"value": 1.5})
    assert tried(url, "joined", "a", "2") == (200, {"value": {"0": "a", "1": "2"}})
    status, said = tried(url, "half", "-1")
    assert (status, said["error"]["code"]) == (200, "FUNCTION_ERROR")
    assert "<b>-1</b> is negative" in said["error"]["message"]
    assert serving.metric("udf_rows_total", function="half", version="1", outcome="ok") == 1
    assert serving.metric("udf_rows_total", function="half", version="1", outcome="failed") == 1


@pytest.mark.parametrize(
    ("function", "arguments", "code"),
    [
        ("nothing", ["1"], "UNKNOWN_FUNCTION"),
        ("half@9", ["1"], "UNKNOWN_VERSION"),
        ("half", [], "ARGUMENT_COUNT"),
        ("half", ["x"], "ARGUMENT_TYPE"),
        ("half", ["[" * 30_000], "ARGUMENT_TYPE"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(serve, function, arguments, code):
    _, said = tried(serve(half, try_calls=True).server.metrics_url, function, *arguments)
    assert said["error"]["code"] == code


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"function": 1, "arguments": []}', b'{"function": "half", "arguments": [1]}',
             b'{"function": "half", "arguments": "1"}', b'{"function": "half@1@2", "arguments": []}', b"[" * 60_000],
    ids=range(8),
)  # fmt: skip
def test_a_body_that_is_no_call_is_refused(serve, body):
    url = serve(half, try_calls=True).server.metrics_url
    assert ask(f"{url}/try", body, Content_Type="application/json")[0] == 400


def test_methods_types_and_sizes_are_checked(serve):
    url = serve(half, try_calls=True).server.metrics_url
    assert ask(f"{url}/try")[0] == 405
    assert ask(f"{url}/", b"x")[0] == 405
    assert ask(f"{url}/try", b"function=half", Content_Type="application/x-www-form-urlencoded")[0] == 415
    assert ask(f"{url}/try", b" " * 70_000, Content_Type="application/json")[0] == 413
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    connection.putrequest("POST", "/try")
    connection.putheader("Content-Type", "application/json")
    connection.endheaders()
    assert connection.getresponse().status == 411
    connection.close()


def test_a_page_of_another_site_cannot_call(serve):
    url = serve(half, try_calls=True).server.metrics_url
    assert tried(url, "half", "3", Origin=url)[0] == 200
    assert tried(url, "half", "3", Origin="http://evil.example")[0] == 403
    # A name of theirs that leads to this machine.
    assert tried(url, "half", "3", Host="evil.example", Origin="http://evil.example")[0] == 403


@pytest.mark.parametrize("path", ["/", "/catalog.json"])
def test_a_page_of_another_site_cannot_read_the_catalogue(serve, tokens, path):
    url = serve(half).server.metrics_url
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", ""):
        status, _, text = ask(f"{url}{path}", Host=host)
        assert (status, "half" in text) == (403, False)
    assert ask(f"{url}{path}", Origin="http://evil.example")[0] == 403
    for host in ("localhost:1", "127.0.0.1", "[::1]:80", "10.1.2.3"):
        assert ask(f"{url}{path}", Host=host)[0] == 200
    access, every, _ = tokens
    url = serve(half, access_file=access).server.metrics_url
    assert ask(f"{url}{path}", Host="udf.example")[0] == 401
    assert ask(f"{url}{path}", Host="udf.example", **bearer(every))[0] == 200


def test_with_an_access_file_the_page_wants_a_token(serve, tokens):
    path, every, few = tokens
    url = serve(half, joined, access_file=path, try_calls=True).server.metrics_url
    status, headers, text = ask(f"{url}/")
    assert status == 401
    assert headers["WWW-Authenticate"].startswith("Basic ")
    assert "half" not in text
    assert ask(f"{url}/catalog.json")[0] == 401
    assert tried(url, "half", "3")[0] == 401
    for wrong in (bearer(new_token()), basic(""), {"Authorization": "Basic !"}, {"Authorization": "Bearer"}):
        assert ask(f"{url}/", **wrong)[0] == 401
        assert tried(url, "half", "3", **wrong)[0] == 401
    for headers in (bearer(every), basic(every)):
        assert "half" in ask(f"{url}/", **headers)[2]
        assert tried(url, "half", "3", **headers) == (200, {"value": 1.5})
    for headers in (bearer(few), basic(few)):
        shown = ask(f"{url}/", **headers)[2]
        assert "joined" in shown and "half" not in shown
        assert tried(url, "joined", "a", **headers)[0] == 200
        status, said = tried(url, "half", "3", **headers)
        assert (status, said["error"]["code"]) == (403, "PERMISSION_DENIED")


def test_a_call_is_refused_while_the_server_drains(serve):
    serving = serve(half, try_calls=True)
    serving.server.service.drain()
    assert tried(serving.server.metrics_url, "half", "3")[1]["error"]["code"] == "SHUTTING_DOWN"


def test_aggregates_are_shown_and_not_tried(serve):
    from tests.spark_client.executor.aggregate.world import Total
    from udf_server.aggregate.declaration import declare_aggregate

    url = serve(declare_aggregate(Total), try_calls=True).server.metrics_url
    page = Page(ask(f"{url}/")[2])
    assert "form" not in {tag for tag, _ in page.tags}
    assert "neither merging nor retracting" in page.text or "merging" in page.text
    assert tried(url, "total", "3")[0] == 400


def test_the_page_can_be_off(serve):
    url = serve(half, page=False).server.metrics_url
    status, _, text = ask(f"{url}/")
    assert (status, text) == (404, "there are /metrics, /livez and /readyz\n")
    assert ask(f"{url}/catalog.json")[0] == 404


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"page": False}, "needs 'page'"),
        ({"tls_certificate": "c", "tls_key": "k", "tls_client_ca": "ca"}, "certificates alone"),
        ({"metrics_host": "0.0.0.0"}, "every caller could make calls"),
        ({"metrics_host": "0.0.0.0", "access_file": "a"}, "tokens would be sent unencrypted"),
    ],
)
def test_a_server_on_whose_page_the_wrong_people_could_call_does_not_start(settings, why):
    with pytest.raises(InvalidConfig, match=why):
        check_exposure(ServerConfig(try_calls=True, **settings))


def test_trying_calls_beyond_the_machine_is_possible_on_purpose():
    check_exposure(ServerConfig(try_calls=True, metrics_host="0.0.0.0", allow_anonymous=True))
    check_exposure(ServerConfig(try_calls=True, metrics_host="0.0.0.0", access_file="a", allow_plaintext=True))


def test_beyond_the_machine_no_page_asks_for_a_token_in_the_open(serve, tokens):
    path, every, _ = tokens
    serving = serve(half, access_file=path, metrics_host="0.0.0.0")
    url = serving.server.metrics_url.replace("0.0.0.0", "127.0.0.1")
    status, headers, text = ask(f"{url}/", **bearer(every))
    assert (status, headers["WWW-Authenticate"]) == (403, None)
    assert "allow_plaintext" in text


@pytest.mark.slow
def test_several_processes_show_one_page(plugin):
    path = plugin("import udf_server as udf\n@udf.scalar\nasync def twice(x: int) -> int:\n    return 2 * x\n")
    command = [sys.executable, "-m", "udf_server", "serve", "--plugin", path, "--no-entry-points", "--processes", "2"]
    server = subprocess.Popen(
        [*command, "--port", "0", "--metrics-port", "0", "--drain-seconds", "0.2", "--try-calls"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        url = json.loads(server.stdout.readline())["metrics"]
        assert "twice(x bigint) -> bigint" in Page(ask(f"{url}/")[2]).text
        assert tried(url, "twice", "21") == (200, {"value": 42})
        found = json.loads(ask(f"{url}/catalog.json")[2])
        assert found["server"]["processes"] == 2
        assert found["functions"][0]["statistics"]["ok"] == 1
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()


@pytest.mark.slow
def test_a_call_that_takes_long_does_not_hold_the_page(serve):
    @udf.scalar(timeout="2 s")
    async def endless(x: int) -> int:
        await asyncio.Event().wait()
        return x

    serving = serve(endless, try_calls=True)
    url = serving.server.metrics_url
    assert tried(url, "endless", "3")[1]["error"]["code"] == "TIMEOUT"
    assert ask(f"{url}/")[0] == 200
