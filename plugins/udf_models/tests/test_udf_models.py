"""The functions run against a scripted service on this machine."""

import asyncio
import importlib.metadata
import logging
import socket

import aiohttp
import pytest
from yarl import URL

from remote_udf.errors import ErrorCode
from udf_models.models_file import InvalidModels, read_models
from udf_models.settings import InvalidSetting, ModelsSettings
from udf_models.testing import Reply, ScriptedService
from udf_server import CallContext
from udf_server.base.context import StreamContext
from udf_server.testing import FunctionEnvironment

MODEL = "[models.a]\nurl = 'http://x/'\nmodel = 'm'\n"
ANSWER = "[models.a.answers.b]\nreturns = 'c int'\n"
KEY, PROMPT = "s3cr3t-k3y", "my private prompt"
FAST = {"initial_delay": "1 ms", "max_delay": "1 ms"}


async def run(function, *arguments, **options):
    async with FunctionEnvironment() as environment:
        return await environment.run(function, *arguments, **options)


async def test_a_prompt_and_its_instructions_are_separate_messages(configured, service, monkeypatch):
    monkeypatch.setenv("ACME_KEY", KEY)
    functions = configured(service.url, 'key-variable = "ACME_KEY"\nparameters = { temperature = 0, max_tokens = 9 }')
    assert [function.spec.signature for function in functions.values()] == [
        "complete_small(prompt string, instructions string = ...) -> string"
    ]
    result = await run(functions["complete_small"], ["two", None], ["be brief", "be brief"])
    assert result.to_pylist() == ["two", None]
    (request,) = service.requests
    assert request.path == "chat/completions"
    assert request.body == {
        "model": "small-2026",
        "temperature": 0,
        "max_tokens": 9,
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "two"}],
    }
    assert request.headers["Authorization"] == f"Bearer {KEY}"


async def test_texts_are_embedded_in_requests_for_many(configured, service):
    embed = configured(service.url, 'functions = ["embed"]')["embed_small"]
    texts = [f"text {number}" for number in range(40)]
    vectors = (await run(embed, [*texts, None])).to_pylist()
    assert vectors[:40] == [[4.0, float(len(str(number))), 1.0, 0.0] for number in range(40)]
    assert vectors[40] is None
    assert [len(request.body["input"]) for request in service.requests] == [32, 8]


async def test_vectors_may_be_numbers_in_any_order(configured, service):
    embed = configured(service.url, 'functions = ["embed"]')["embed_small"]
    service.script(
        Reply(body={"data": [{"index": 1, "embedding": [1, 2.5]}, {"index": 0, "embedding": [3, 4]}]}),
    )
    assert (await run(embed, ["a", "b"])).to_pylist() == [[3.0, 4.0], [1.0, 2.5]]


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
async def test_a_service_that_recovers_is_asked_again(configured, service, status):
    functions = configured(service.url, 'functions = ["complete", "embed"]')
    for function, value in zip(functions.values(), ["x", [1.0, 0.0, 0.0, 0.0]], strict=True):
        service.script(Reply(status=status), Reply(status=status))
        assert (await run(function, ["x"], **FAST)).to_pylist() == [value]
    assert len(service.requests) == 6


@pytest.mark.parametrize(("header", "seconds"), [({"Retry-After": "1"}, 1.0), ({"retry-after-ms": "300"}, 0.3)])
@pytest.mark.parametrize("operation", ["complete", "embed"])
async def test_what_the_service_asks_to_wait_is_waited(configured, service, operation, header, seconds):
    functions = configured(service.url, f'functions = ["{operation}"]')
    service.script(Reply(status=429, headers=header))
    await run(functions[f"{operation}_small"], ["x"], **FAST)
    first, second = service.requests
    assert second.time - first.time >= seconds


async def test_what_no_attempt_helps_against_is_an_error_at_once(configured, service):
    complete = configured(service.url)["complete_small"]
    quota = {"error": {"message": PROMPT, "code": "insufficient_quota"}}
    for reply in (Reply(status=401), Reply(status=302, headers={"Location": "/v1/other"}), Reply(429, body=quota)):
        service.script(reply)
        result = await run(complete, [PROMPT], **FAST)
        assert (result.errors[0].attempts, result.errors[0].retryable) == (1, False)
    assert len(service.requests) == 3
    assert "model 'small', chat/completions: 429 Too Many Requests (insufficient_quota)" in result.errors[0].message


async def test_a_text_that_is_refused_costs_no_other_its_vector(configured, service):
    embed = configured(service.url, 'functions = ["embed"]\nmax-prompt-bytes = 300')["embed_small"]
    result = await run(embed, ["a", "b" * 400, "c"])
    assert list(result.errors) == [1]
    assert "max-prompt-bytes is 300" in result.errors[1].message
    assert result.values.to_pylist()[2] == [1.0, 0.0, 0.0, 0.0]


async def test_a_key_that_is_refused_is_not_tried_text_by_text(configured, service):
    embed = configured(service.url, 'functions = ["embed"]')["embed_small"]
    service.script(Reply(status=401))
    assert len((await run(embed, ["a", "b", "c", "d"])).errors) == 4
    assert len(service.requests) == 1


def chat(**choice):
    return {"choices": [choice]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("no json " + PROMPT, "the answer is not a JSON object"),
        ("[" * 100_000, "the answer is not a JSON object"),
        (b"\x1f\x8b\x08\x00", "the answer is not a JSON object"),
        ([PROMPT], "the answer is not a JSON object"),
        ({"choices": []}, "has no choices with a message"),
        ({"choices": {"0": PROMPT}}, "has no choices with a message"),
        (chat(message=PROMPT), "has no choices with a message"),
        (chat(message={"content": 7}), "the answer has no text"),
        (chat(message={"content": None, "tool_calls": [PROMPT]}), "the answer has no text"),
        ('{"choices": [{"message": {"content": "\\ud800"}}]}', "the answer is not valid Unicode"),
        (chat(message={"refusal": PROMPT}), "the model refuses to answer"),
        (chat(message={"content": ""}, finish_reason="content_filter"), "the service has filtered the answer"),
        (chat(message={"content": PROMPT}, finish_reason="length"), "cut at the maximum number of tokens"),
        (" " * 5000, "larger than max-answer-bytes, 4096"),
    ],
)
async def test_an_answer_that_is_not_as_expected_is_the_error_of_its_row(configured, service, body, message):
    complete = configured(service.url, 'max-answer-bytes = "4 kB"')["complete_small"]
    if body == "[" * 100_000:
        complete = configured(service.url)["complete_small"]
    service.script(Reply(body=body))
    result = await run(complete, ["poisoned", "healthy"], buffer_capacity=1)
    assert result.values.to_pylist() == [None, "healthy"]
    assert message in result.errors[0].message
    assert PROMPT not in result.errors[0].message + result.errors[0].traceback


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "has no vectors for 2 texts"),
        ([{"embedding": [1]}], "has 1 vectors for 2 texts"),
        ([{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}], "which text a vector belongs to"),
        ([{"index": 0, "embedding": [1]}, {"index": 2, "embedding": [1]}], "which text a vector belongs to"),
        ([{"embedding": [1]}, 5], "which text a vector belongs to"),
        ([{"embedding": [1]}, {"embedding": [1, 2]}], "vectors of different lengths"),
        ([{"embedding": [1]}, {"embedding": ["1"]}], "is not a vector"),
        ([{"embedding": [1]}, {"embedding": "no base64!"}], "is not a vector"),
        ([{"embedding": [1]}, {"embedding": "AAA="}], "is not a vector"),
        ([{"embedding": [1]}, {"embedding": []}], "is empty or not finite"),
        ([{"embedding": [1]}, {"embedding": [1e60]}], "is empty or not finite"),
        ([{"embedding": [1]}, {"embedding": [10**400]}], "is not a vector"),
    ],
)
async def test_vectors_that_are_not_as_expected_are_errors(configured, service, data, message):
    embed = configured(service.url, 'functions = ["embed"]')["embed_small"]
    service.script(Reply(body={"data": data}))
    result = await run(embed, ["a", "b"])
    assert list(result.errors) == [0, 1]
    assert message in result.errors[0].message


async def test_a_cut_answer_is_a_value_if_the_file_says_so(configured, service):
    service.script(Reply(text="the beginning", finish_reason="length"))
    complete = configured(service.url, "keep-cut-answers = true")["complete_small"]
    assert (await run(complete, ["x"])).to_pylist() == ["the beginning"]


@pytest.mark.parametrize("reply", [Reply(hang=True), Reply(drip_seconds=0.01), Reply(break_after=5)])
@pytest.mark.parametrize("operation", ["complete", "embed"])
async def test_an_answer_that_does_not_end_costs_an_attempt(configured, service, operation, reply):
    function = configured(service.url, f'functions = ["{operation}"]')[f"{operation}_small"]
    service.script(reply)
    result = await run(function, ["x"], attempt_timeout="300 ms", **FAST)
    assert not result.errors
    service.script(reply, reply)
    result = await run(function, ["y"], attempt_timeout="300 ms", max_attempts=2, **FAST)
    assert (result.errors[0].attempts, result.errors[0].retryable) == (2, True)


async def test_a_service_that_is_not_there_is_retryable(configured):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        result = await run(configured(url)["complete_small"], [PROMPT], max_attempts=2, **FAST)
    assert (result.errors[0].attempts, result.errors[0].retryable) == (2, True)


async def test_neither_keys_nor_prompts_nor_answers_are_shown(configured, service, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("ACME_KEY", KEY)
    functions = configured(service.url, 'key-variable = "ACME_KEY"\nfunctions = ["complete", "embed"]')
    for function in functions.values():
        for reply in (Reply(), Reply(status=400), Reply(status=500), Reply(body=PROMPT), Reply(break_after=40)):
            service.script(reply)
            result = await run(function, [PROMPT], max_attempts=1)
            for error in result.errors.values():
                assert not any(secret in error.message + error.traceback for secret in (KEY, PROMPT))
    (model,) = read_models(ModelsSettings.from_environment().file, None)
    assert KEY not in repr(model)
    assert not any(secret in caplog.text for secret in (KEY, PROMPT))


async def test_what_the_service_says_is_shown_if_the_file_says_so(configured, service):
    complete = configured(service.url, "show-service-messages = true")["complete_small"]
    service.script(Reply(status=400))
    result = await run(complete, ["long"])
    assert '400 Bad Request (scripted_400): scripted for [[{"role": "user", "content": "long"}]' in (
        result.errors[0].message
    )


async def test_equal_prompts_are_paid_once_until_the_model_changes(configured, service):
    async with FunctionEnvironment() as environment:
        for settings, requests in (("", 2), ("max-prompt-bytes = 900", 2), ("parameters = { temperature = 1 }", 4)):
            complete = configured(service.url, settings)["complete_small"]
            assert (await environment.run(complete, ["a", "b", "a"])).to_pylist() == ["a", "b", "a"]
            assert len(service.requests) == requests


def test_the_key_of_the_cache_is_the_service_the_model_and_the_parameters(configured):
    keys = [
        configured("http://x/", settings)["complete_small"].spec.options["cache-key"]
        for settings in (
            "", "usd-per-million-tokens-in = 1", "parameters = { temperature = 1 }", "options = { cache-ttl = '1 h' }",
        )
    ]  # fmt: skip
    assert (keys[0] == keys[1] == keys[3], keys[0] == keys[2]) == (True, False)


async def spent(function, arguments):
    """What a call of the function reports."""
    stream = StreamContext("f", "1")
    context = CallContext(stream, row=0, rows=1, attempt=1, deadline=1.0)
    for hook in function.opens:
        await hook()
    try:
        await function.call(context, *arguments)
    finally:
        for hook in function.closes:
            await hook()
    return stream.spending.take()


async def test_tokens_and_money_are_spent_as_the_service_counts_them(configured, service):
    prices = "usd-per-million-tokens-in = 2\nusd-per-million-tokens-out = 10"
    functions = configured(service.url, f'functions = ["complete", "embed"]\n{prices}')
    service.script(Reply(text="one two three"))
    found = await spent(functions["complete_small"], ["four words and five"])
    assert found == pytest.approx({"tokens": 7, "tokens_in": 4, "tokens_out": 3, "usd": 38e-6})
    found = await spent(functions["embed_small"], [["four words and five", "two words"]])
    assert found == pytest.approx({"tokens": 6, "tokens_in": 6, "tokens_out": 0, "usd": 12e-6})


@pytest.mark.parametrize(
    "usage",
    [None, 7, {}, {"prompt_tokens": -1}, {"prompt_tokens": "9"}, {"prompt_tokens": 1e300}, {"total_tokens": True}],
)
async def test_a_usage_that_is_not_valid_is_not_spent(configured, service, usage):
    service.script(Reply(body={**chat(message={"content": "good"}), "usage": usage}))
    assert await spent(configured(service.url)["complete_small"], ["x"]) == {}


def test_the_estimate_is_of_the_prompt_and_the_longest_answer(configured):
    settings = 'functions = ["complete", "embed"]\nusd-per-million-tokens-out = 10\nparameters = { max_tokens = 100 }'
    functions = configured("http://x/", settings)
    assert functions["complete_small"].cost("x" * 30, "y" * 10) == {
        "tokens": 110, "tokens_in": 10, "tokens_out": 100, "usd": 1e-3,
    }  # fmt: skip
    assert functions["embed_small"].cost(["x" * 30, "ü" * 5])["tokens"] == 10


async def test_many_prompts_are_in_flight_together(configured, service):
    service.latency = 0.2
    complete = configured(service.url)["complete_small"]
    prompts = [str(number) for number in range(200)]
    assert (await run(complete, prompts, buffer_capacity=200)).to_pylist() == prompts
    assert service.most_in_flight > 100


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("", "has no table [models.NAME]"),
        ("a = [", "models.toml: "),
        ("[model.a]\n", "has model; known is models"),
        ("[models.'a b']\n", "'a b': its name becomes part of names of functions"),
        ("[models]\na = 5\n", "model 'a': is 5 and not a table"),
        ("[models.a]\nurl = 'http://x/'\n", "model 'a': has no model"),
        ("[models.a]\nprice = 5\n", "has price; known are url, model, "),
        ("[models.a]\nurl = 5\n", "url: 5 is not a text"),
        ("[models.a]\nfunctions = 'complete'\n", "functions: 'complete' is not a list"),
        ("[models.a]\nwith-usage = 1\n", "with-usage: 1 is not true or false"),
        ("[models.a]\nurl = 'ftp://x/'\nmodel = 'm'\n", "is not an http or https URL"),
        ("[models.a]\nurl = 'http://u:p@x/'\nmodel = 'm'\n", "has a user, a query or a fragment"),
        ("[models.a]\nurl = 'http://evil/'\nmodel = 'm'\n", "host evil is not in UDF_MODELS_HOSTS (good, x)"),
        ("[models.a]\nurl = 'http://x/'\nmodel = 'm'\nkey-variable = 'NO_KEY'\n", "variable NO_KEY is not set"),
        ("[models.a]\nurl = 'http://x/'\nmodel = 'm'\nkey-variable = 'BAD_KEY'\n", "the value of BAD_KEY is no key"),
        ("[models.a]\nurl = 'http://x/'\nmodel = 'm'\nfunctions = ['paint']\n", "is not a list of different names"),
        ("[models.a]\nurl = 'http://x/'\nmodel = 'm'\nfunctions = [{}]\n", "is not a list of different names"),
        ("[models.a]\nurl = 'http://x/'\nmodel = 'm'\nparameters = { stream = true }\n", "the functions set stream"),
        ("[models.a]\nurl = 'http://x/'\nmodel = 'm'\nusd-per-million-tokens-in = -1\n", "not a number of at least 0"),
        ("[models.a]\nurl = 'http://x/'\nmodel = 'm'\nmax-answer-bytes = 'big'\n", "max-answer-bytes: 'big' is not"),
        ("[models.a]\nurl = 'http://x/'\nmodel = 'm'\nmax-prompt-bytes = 0\n", "max-prompt-bytes: 0 is less than one"),
        (f"{MODEL}parameters = {{ since = 2026-01-01 }}\n", "parameters: since is datetime.date(2026, 1, 1), and JSON"),
        (f"{MODEL}parameters = {{ top = [1, nan] }}\n", "parameters: top is [1, nan], and JSON"),
        (f"{MODEL}options = {{ speed = 5 }}\n", "options: unknown option 'speed'"),
        (f"{MODEL}options = {{ nulls = 'call' }}\n", "options: unknown option 'nulls'"),
        (f"{MODEL}options = {{ name = 'x' }}\n", "options: unknown option 'name'"),
        (f"{MODEL}options = {{ version = '2' }}\n", "options: unknown option 'version'"),
        (f"{MODEL}options = {{ timeout = 'soon' }}\n", "options: option 'timeout': 'soon' is not a duration"),
        (f"{MODEL}{MODEL.replace('.a', '.A')}", "model 'a' and model 'A' have one name"),
        (
            f"{MODEL}{ANSWER}{(MODEL + ANSWER).replace('.a', '.c', 1).replace('.a.', '.c.')}",
            "answers.b of model 'a' and answers.b of model 'c' have one name",
        ),
        (f"{MODEL}[models.a.answers.b]\nreturns = ''\n", "answers.b: returns: '' has no fields"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(tmp_path, table, message):
    (tmp_path / "models.toml").write_text(table)
    with pytest.raises(InvalidModels) as caught:
        read_models(tmp_path / "models.toml", {"x", "good"}, {"BAD_KEY": f"{KEY}\n"})
    assert message in str(caught.value)
    assert KEY not in str(caught.value)


def test_hosts_are_names_with_commas():
    read = ModelsSettings.from_environment
    assert read({"UDF_MODELS_FILE": "m", "UDF_MODELS_HOSTS": "A.example, b"}).hosts == {"a.example", "b"}
    with pytest.raises(InvalidSetting, match="UDF_MODELS_HOSTS is not a list of host names"):
        read({"UDF_MODELS_FILE": "m", "UDF_MODELS_HOSTS": "http://a/"})


async def test_options_of_a_model_are_those_of_its_functions(configured, service):
    complete = configured(service.url, "options = { max-attempts = 1 }")["complete_small"]
    service.script(Reply(status=500))
    assert (await run(complete, ["x"])).errors[0].attempts == 1


async def test_a_cache_key_of_the_operator_does_not_let_another_model_answer(configured, service):
    key = 'options = { cache-key = "second try" }'
    keys = [
        configured(service.url, settings)["complete_small"].spec.options["cache-key"]
        for settings in ("", key, f"{key}\nparameters = {{ temperature = 1 }}")
    ]
    assert len(set(keys)) == 3


async def test_a_reply_of_the_script_and_of_a_function_may_hang(configured, service):
    service.answer = lambda request: Reply(hang=True) if request.prompt == "never" else "now"
    complete = configured(service.url)["complete_small"]
    result = await run(complete, ["never", "x"], timeout="0.3 s")
    assert {row: error.code for row, error in result.errors.items()} == {0: ErrorCode.TIMEOUT}


async def test_a_service_whose_client_is_gone_logs_nothing(caplog):
    body = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with ScriptedService(lambda request: Reply(text="x" * 1_000_000, drip_seconds=1e-9)) as service:
        reader, writer = await asyncio.open_connection("127.0.0.1", URL(service.url).port)
        writer.write(head + body)
        await reader.readline()
        writer.transport.abort()
        async with aiohttp.ClientSession() as session, session.get(f"{service.url}files") as response:
            assert response.status == 404
    assert caplog.messages == []


def test_the_installed_package_is_a_plugin_without_functions_by_default(monkeypatch):
    monkeypatch.delenv("UDF_MODELS_FILE", raising=False)
    (point,) = importlib.metadata.entry_points(group="udf_server", name="models")
    assert point.load().udf_functions() == []


PNG = b"\x89PNG\r\n\x1a\n" + bytes(9)


@pytest.mark.parametrize(
    ("image", "beginning"),
    [
        ("https://pictures.example/1.png", "https://pictures.example/1.png"),
        ("data:image/png;base64,aa", "data:image/png;base64,aa"),
        (PNG, "data:image/png;base64,iVBORw0KGgo"),
        (b"\xff\xd8\xff\xe0", "data:image/jpeg;base64,/9j/4A=="),
        (b"GIF89a", "data:image/gif;base64,"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "data:image/webp;base64,"),
    ],
)
async def test_an_image_is_a_url_or_bytes(configured, service, image, beginning):
    look = configured(service.url, 'functions = ["complete_image"]')["complete_image_small"]
    assert look.spec.signature.startswith("complete_image_small(prompt string, image ")
    result = await run(look, ["what is it?"], [image], ["be brief"])
    assert result.to_pylist() == ["what is it?"]
    (system, user) = service.requests[0].body["messages"]
    assert system == {"role": "system", "content": "be brief"}
    assert user["content"][0] == {"type": "text", "text": "what is it?"}
    assert user["content"][1]["image_url"]["url"].startswith(beginning)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("file:///etc/passwd", "image is neither an http"),
        (b"BM secret", "image has 9 bytes that are neither PNG, JPEG, GIF nor WebP"),
    ],
)
async def test_what_is_no_image_is_the_error_of_its_row_and_not_sent(configured, service, image, message):
    look = configured(service.url, 'functions = ["complete_image"]')["complete_image_small"]
    failed = (await run(look, ["what is it?"], [image])).errors[0]
    assert message in failed.message and "secret" not in failed.message
    assert service.requests == []


def hide(text):
    if "raise" in text:
        raise ValueError(text)
    return None if "none" in text else text.replace("Ann", "[name]")


async def test_texts_of_rows_are_redacted_before_they_are_sent(configured, service):
    functions = configured(
        service.url,
        f'functions = ["complete", "complete_image", "classify", "embed", "rerank"]\nredact = "{__name__}:hide"',
    )
    await run(functions["complete_small"], ["I am Ann"], ["Ann is a name"])
    await run(functions["complete_image_small"], ["Ann?"], ["https://pictures.example/Ann"])
    service.script(Reply(text='{"label": "Ann"}'))
    assert (await run(functions["classify_small"], ["Ann, Bob"], [["Ann", "Bob"]])).to_pylist() == ["Ann"]
    await run(functions["embed_small"], ["Ann"])
    await run(functions["rerank_small"], ["who is Ann?"], [["Ann", "Bob"]])
    complete, image, classify, embed, rerank = (request.body for request in service.requests)
    assert [message["content"] for message in complete["messages"]] == ["Ann is a name", "I am [name]"]
    assert [part.get("text") for part in image["messages"][0]["content"]] == ["[name]?", None]
    assert classify["messages"][-1]["content"] == "[name], Bob"
    assert embed["input"] == ["[name]"]
    assert (rerank["query"], rerank["documents"]) == ("who is [name]?", ["[name]", "Bob"])


@pytest.mark.parametrize(("text", "message"), [("raise s3cr3t", "raised ValueError"), ("none", "returned NoneType")])
async def test_nothing_is_sent_if_redaction_fails(configured, service, text, message):
    complete = configured(service.url, f'redact = "{__name__}:hide"')["complete_small"]
    failed = (await run(complete, [text])).errors[0]
    assert f"redact, {__name__}:hide, {message}" in failed.message
    assert "s3cr3t" not in failed.message + failed.traceback
    assert service.requests == []


@pytest.mark.parametrize(
    ("name", "message"),
    [("no_such_module:hide", "cannot be imported; expected module:function"), ("sys:path", "is not a function")],
)
def test_a_redaction_that_is_none_is_refused(configured, service, name, message):
    with pytest.raises(InvalidModels, match=message):
        configured(service.url, f'redact = "{name}"')


def test_answers_to_redacted_prompts_are_kept_apart(configured, service):
    keys = [
        configured(service.url, settings)["complete_small"].spec.options["cache-key"]
        for settings in ("", f'redact = "{__name__}:hide"')
    ]
    assert keys[0] != keys[1]
