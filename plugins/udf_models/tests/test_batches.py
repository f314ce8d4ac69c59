"""Batches run against the Batch API of the scripted service: each request is in one batch, whatever happens."""

import asyncio
import contextlib
import json
import sqlite3
import time

import pytest

import udf_models
from udf_models.models_file import InvalidModels
from udf_models.testing import BatchEnding, Reply
from udf_server.testing import FunctionEnvironment, metric_value

PROMPT = "my private prompt"
SUBMITTED = {"state": "submitted", "answer": None}


def done(answer):
    return {"state": "done", "answer": answer}


@pytest.fixture
def configured(tmp_path, monkeypatch, service):
    """`configured(batch, settings)` writes a file of one model, and returns its functions by name."""

    def configure(batch='poll-interval = "1 ms"', settings='functions = ["complete_batch"]', delay="20 ms"):
        file = tmp_path / "models.toml"
        options = 'options.initial-delay = "1 ms"\noptions.max-delay = "1 ms"'
        options += f'\noptions.max-queue-delay = "{delay}"' if delay else ""
        file.write_text(
            f'[models.small]\nurl = "{service.url}"\nmodel = "small-2026"\n{options}\n{settings}\n'
            f"[models.small.batch]\n{batch}\n"
        )
        monkeypatch.setenv("UDF_MODELS_FILE", str(file))
        return {function.spec.name: function for function in udf_models.udf_functions()}

    return configure


@pytest.fixture
def ask(tmp_path, configured):
    """`ask(prompts)` asks a new server, which has what the servers before it have kept."""

    async def ask(prompts, instructions=None, function=None, **options):
        async with FunctionEnvironment(key_values=f"file://{tmp_path}/kept") as environment:
            given = [prompts] if instructions is None else [prompts, instructions]
            return await environment.run(function or configured()["complete_batch_small"], *given, **options)

    return ask


def paths(service, path, method="GET"):
    return [each for each in service.requests if each.path == path and each.method == method]


async def eventually(asking, wanted):
    """Ask until the rows are as wanted."""
    until = time.monotonic() + 20
    while (found := (await asking()).values.to_pylist()) != wanted:
        assert time.monotonic() < until, found
        await asyncio.sleep(0.05)


async def test_rows_are_submitted_then_answered(ask, service):
    assert (await ask(["one", "two", None, "one"])).to_pylist() == [SUBMITTED, SUBMITTED, None, SUBMITTED]
    assert (await ask(["two", "one"])).to_pylist() == [done("two"), done("one")]
    assert (await ask(["one", "three"])).to_pylist() == [done("one"), SUBMITTED]
    assert service.batches == ["batch_1", "batch_2"]
    assert (service.batch_rows, service.resubmitted_rows) == (3, 0)


async def test_a_file_has_the_requests_of_the_batch_api(ask, service):
    await ask(["one", "two"], ["be brief", None])
    (upload,) = paths(service, "files", "POST")
    assert upload.body["purpose"] == "batch"
    (line,) = map(json.loads, upload.body["file"].splitlines())
    assert line == {
        "custom_id": line["custom_id"], "method": "POST", "url": "/v1/chat/completions",
        "body": {
            "model": "small-2026",
            "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "one"}],
        },
    }  # fmt: skip
    (created,) = paths(service, "batches", "POST")
    assert created.body == {
        "input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h",
        "metadata": created.body["metadata"],
    }  # fmt: skip


async def test_rows_of_many_streams_are_in_one_file(tmp_path, configured, service):
    function = configured(delay="1 s")["complete_batch_small"]
    async with FunctionEnvironment(key_values=f"file://{tmp_path}/kept") as environment:
        streams = [[[f"{stream} {row}" for row in range(50)]] for stream in range(4)]
        await environment.run_streams(function, streams)
    assert len(service.batches) == 1
    assert service.batch_rows == 200


async def test_servers_that_see_the_same_rows_at_once_submit_each_once(ask, service):
    prompts = [f"prompt {number}" for number in range(300)]
    asked = [prompts[start:] + prompts[:start] for start in (0, 100, 200)]
    results = await asyncio.gather(*map(ask, asked))
    for rows, result in zip(asked, results, strict=True):
        # A server that opens its store late may find answers.
        assert all(found in (SUBMITTED, done(row)) for row, found in zip(rows, result.to_pylist(), strict=True))
    assert (service.batch_rows, service.resubmitted_rows) == (300, 0)


async def test_the_status_is_asked_at_most_once_in_the_interval(ask, configured, service):
    service.script_batches(BatchEnding(seconds=3600))
    function = configured('poll-interval = "1 h"')["complete_batch_small"]
    for _ in range(3):
        assert (await ask(["one"], function=function)).to_pylist() == [SUBMITTED]
    assert paths(service, "batches/batch_1") == []
    function = configured()["complete_batch_small"]
    service.script_batches(BatchEnding(seconds=3600))
    for _ in range(3):
        await ask(["two"], function=function)
    assert len(paths(service, "batches/batch_2")) == 2  # not by the call that submits


async def test_a_file_of_results_is_read_once(ask, service):
    await ask(["one", "two"])
    for _ in range(3):
        assert (await ask(["one", "two"])).to_pylist() == [done("one"), done("two")]
    assert len(paths(service, "files/file-2/content")) == 1


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        (BatchEnding("expired", answered=1), "model 'small': the batch has no answer for this request (batch_expired)"),
        (BatchEnding("completed", answered=1, code="scripted"), "no answer for this request (scripted)"),
        (BatchEnding("cancelled", answered=1, code="batch_cancelled"), "for this request (batch_cancelled)"),
    ],
)
async def test_rows_without_an_answer_are_errors_and_the_others_are_answered(ask, service, ending, message):
    service.script_batches(ending)
    await ask(["one", PROMPT])
    result = await ask(["one", PROMPT])
    assert result.values.to_pylist()[0] == done("one")
    assert list(result.errors) == [1]
    assert message in result.errors[1].message
    assert not result.errors[1].retryable
    assert PROMPT not in result.errors[1].message  # which the service repeats in its message


async def test_a_batch_that_the_service_refuses_is_the_error_of_its_rows(ask, service):
    service.script_batches(BatchEnding("failed", code="token_limit_exceeded"))
    await ask(["one", "two"])
    result = await ask(["one", "two"])
    assert {error.message for error in result.errors.values()} == {
        "model 'small': batch batch_1 failed (token_limit_exceeded)"
    }
    assert len(service.batches) == 1


async def test_a_batch_that_is_cancelled_at_the_service(ask, service):
    service.script_batches(BatchEnding(seconds=3600))
    await ask(["one"])
    service._batches.reply("POST", "batches/batch_1/cancel", {}, {})
    assert "batch_cancelled" in (await ask(["one"])).errors[0].message


@pytest.mark.parametrize("ending", [BatchEnding("expired", answered=0), BatchEnding("failed"), BatchEnding(output="?")])
async def test_an_error_is_asked_again_when_it_is_no_longer_kept(ask, configured, service, ending):
    function = configured('poll-interval = "1 ms"\nkeep-errors = "1 s"')["complete_batch_small"]
    service.script_batches(ending)
    await ask(["one"], function=function)
    assert (await ask(["one"], function=function)).errors
    await eventually(lambda: ask(["one"], function=function), [SUBMITTED])
    assert (await ask(["one"], function=function)).to_pylist() == [done("one")]


def line(custom_id, content="x", status=200):
    body = {"choices": [{"message": {"content": content}, "finish_reason": "stop"}]}
    return json.dumps({"custom_id": custom_id, "response": {"status_code": status, "body": body}, "error": None})


@pytest.mark.parametrize(
    "poison",
    [
        PROMPT, "[" * 100_000, "[1]", "null", '{"custom_id": 7}', line("f" * 32), line("../../etc"), line("F" * 31),
        '{"custom_id": "' + "0" * 32 + '"}', "x" * 5_000, "\x00\x01",
    ],
)  # fmt: skip
async def test_a_poisoned_line_costs_no_other_row_its_answer(ask, configured, service, poison):
    function = configured('poll-interval = "1 ms"', 'functions = ["complete_batch"]\nmax-answer-bytes = "4 kB"')[
        "complete_batch_small"
    ]
    service.script_batches(BatchEnding(seconds=3600))
    await ask(["one", "two"], function=function)
    (upload,) = paths(service, "files", "POST")
    ids = [json.loads(each)["custom_id"] for each in upload.body["file"].splitlines()]
    service._batches._kept.batches["batch_1"].ending = BatchEnding(output=f"{poison}\n{line(ids[1], 'fine')}")
    result = await ask(["one", "two"], function=function)
    assert result.values.to_pylist()[1] == done("fine")
    assert list(result.errors) == [0]
    assert "batch_1 completed without a result for this request; 1 lines of its files are" in result.errors[0].message
    assert PROMPT not in result.errors[0].message


async def test_an_answer_of_another_batch_changes_nothing(ask, service):
    service.script_batches(BatchEnding(seconds=3600))
    await ask(["one"])
    (upload,) = paths(service, "files", "POST")
    other = json.loads(upload.body["file"])["custom_id"]
    service.script_batches(BatchEnding(output=line(other, "forged")))
    await ask(["two"])
    assert "1 lines of its files are not usable" in (await ask(["two"])).errors[0].message
    assert (await ask(["one"])).to_pylist() == [SUBMITTED]


async def test_a_file_that_is_too_large_is_read_to_the_limit(ask, configured, service):
    function = configured('poll-interval = "1 ms"\nmax-file-bytes = "600 kB"')["complete_batch_small"]
    prompts = [f"{number} {'x' * 10_000}" for number in range(100)]
    await ask(prompts, function=function)
    result = await ask(prompts, function=function)
    answered = [row for row in result.values.to_pylist() if row is not None]
    assert 0 < len(answered) < 80
    assert len(answered) + len(result.errors) == 100
    assert "larger than batch.max-file-bytes, 614400" in result.errors[99].message


async def test_an_answer_that_is_cut_is_the_error_of_its_row(ask, service):
    service.answer = lambda request: Reply(text="half", finish_reason="length")
    await ask(["one"])
    assert "cut at the maximum number of tokens" in (await ask(["one"])).errors[0].message


async def test_a_request_that_is_too_large_is_not_submitted(ask, configured, service):
    function = configured('poll-interval = "1 ms"', 'functions = ["complete_batch"]\nmax-prompt-bytes = 200')
    result = await ask(["one", "x" * 300], function=function["complete_batch_small"])
    assert result.values.to_pylist()[0] == SUBMITTED
    assert "max-prompt-bytes is 200" in result.errors[1].message
    assert service.batch_rows == 1


@pytest.mark.parametrize("path", ["files", "batches"])
async def test_a_service_that_refuses_a_batch_is_an_error_and_can_be_asked_again(ask, service, path):
    service.script(Reply(status=401), path=path)
    result = await ask(["one"])
    assert "401 Unauthorized (scripted_401)" in result.errors[0].message
    assert (await ask(["one"])).to_pylist() == [SUBMITTED]
    assert (await ask(["one"])).to_pylist() == [done("one")]


async def test_an_upload_that_fails_is_tried_again_at_once(ask, service):
    service.script(Reply(status=503), Reply(break_after=3), path="files")
    assert (await ask(["one"])).to_pylist() == [SUBMITTED]
    assert len(service.batches) == 1


@pytest.mark.parametrize(
    ("reply", "event"),
    [
        (Reply(break_after=0), "adopted"),  # it was created, and the answer is lost
        (Reply(status=502), "abandoned"), (Reply(body="no json"), "abandoned"), (Reply(body={}), "abandoned"),
    ],
)  # fmt: skip
async def test_a_batch_that_may_exist_is_looked_for(ask, configured, service, reply, event):
    function = configured('poll-interval = "1 ms"\nlease = "200 ms"')["complete_batch_small"]
    before = metric_value("models_batches_total", event=event)
    service.script(reply, path="batches")
    assert (await ask(["one"], function=function)).to_pylist() == [SUBMITTED]
    await eventually(lambda: ask(["one"], function=function), [done("one")])
    assert (service.batch_rows, service.resubmitted_rows) == (1, 0)
    assert metric_value("models_batches_total", event=event) == before + 1


async def test_a_batch_is_found_on_a_later_page_of_the_list(ask, configured, service):
    function = configured('poll-interval = "1 ms"\nlease = "200 ms"')["complete_batch_small"]
    service.script(Reply(break_after=0), path="batches")
    await ask(["one"], function=function)
    for _ in range(250):
        service._batches._create({"input_file_id": "file-1", "endpoint": "e", "completion_window": "24h"})
    created = len(service.batches)
    await eventually(lambda: ask(["one"], function=function), [done("one")])
    assert len(service.batches) == created


async def test_a_download_that_breaks_is_made_again_and_spent_once(tmp_path, configured, service):
    prices = "usd-per-million-tokens-in = 2\nusd-per-million-tokens-out = 10"
    function = configured('poll-interval = "1 ms"', f'functions = ["complete_batch"]\n{prices}')["complete_batch_small"]
    prompts = [f"prompt {number}" for number in range(1_200)]
    async with FunctionEnvironment(key_values=f"file://{tmp_path}/kept") as environment:
        for reply in (None, Reply(break_after=300_000), None):
            if reply is not None:
                service.script(reply, path="files/file-2/content", method="GET")
            await environment.run(function, prompts)
        result = await environment.run(function, prompts)
    assert result.to_pylist() == [done(prompt) for prompt in prompts]
    assert len(service.batches) == 1
    assert len(paths(service, "files/file-2/content")) == 2
    total = {
        unit: environment.metrics.registry.get_sample_value(
            "udf_spent_total", {"function": "complete_batch_small", "version": "1", "unit": unit, "caller": ""}
        )
        for unit in ("tokens_in", "tokens_out", "usd", "tokens_submitted", "usd_submitted")
    }
    # Half the price; the estimate of what is submitted is a token per four bytes, and 500 for each answer.
    size = sum(map(len, prompts))
    assert total == pytest.approx({
        "tokens_in": 2_400, "tokens_out": 2_400, "usd": 2_400 * 12e-6 / 2, "tokens_submitted": size / 4 + 600_000,
        "usd_submitted": (size / 4 * 2 + 600_000 * 10) / 1e6 / 2,
    })  # fmt: skip


async def test_an_estimate_does_not_count_what_is_submitted(tmp_path, configured):
    function = configured()["complete_batch_small"]
    assert function.cost(["four", "four", "more"]) == {"tokens_submitted": 2 * 501}
    async with FunctionEnvironment(key_values=f"file://{tmp_path}/kept") as environment:
        await environment.run(function, ["four"])
    assert function.cost(["four", "four", "more"]) == {"tokens_submitted": 501}


async def test_answers_with_a_structure(ask, configured, service):
    answers = '[models.small.answers.ticket]\nreturns = "subject string, urgent boolean"'
    functions = configured(settings=f'functions = ["complete_batch"]\n{answers}', delay=None)
    function = functions["complete_json_batch_ticket"]
    service.answer = lambda request: '{"subject": "login", "urgent": true}' if "log" in request.prompt else "hm"
    await ask(["cannot log in", "other"], function=function)
    result = await ask(["cannot log in", "other"], function=function)
    assert result.values.to_pylist()[0] == done({"subject": "login", "urgent": True})
    assert result.errors[1].message == "model 'small': the answer is not valid: it is not JSON"
    (request, _) = map(json.loads, paths(service, "files", "POST")[0].body["file"].splitlines())
    assert request["body"]["response_format"]["json_schema"]["strict"]


async def test_prompts_are_redacted(ask, configured, service):
    function = configured(settings='functions = ["complete_batch"]\nredact = "html:escape"')["complete_batch_small"]
    await ask(["<secret>"], function=function)
    assert "<secret>" not in paths(service, "files", "POST")[0].body["file"]
    assert (await ask(["<secret>"], function=function)).to_pylist() == [done("&lt;secret&gt;")]


async def test_another_model_or_parameter_is_another_request(ask, configured, service):
    for parameters in ("{ temperature = 0 }", "{ temperature = 1 }"):
        functions = configured(settings=f'functions = ["complete_batch"]\nparameters = {parameters}')
        assert (await ask(["one"], function=functions["complete_batch_small"])).to_pylist() == [SUBMITTED]
    functions = configured("discount = 0.4")
    await ask(["one"], function=functions["complete_batch_small"])
    assert len(service.batches) == 3  # with and without temperature; prices do not matter


async def test_a_time_to_live_of_answers_does_not_keep_states(ask, configured, service):
    function = configured(settings='options.cache-ttl = "1 h"\nfunctions = ["complete_batch"]')["complete_batch_small"]
    assert "cache-ttl" not in function.spec.options
    await ask(["one"], function=function)
    assert (await ask(["one"], function=function)).to_pylist() == [done("one")]


async def test_a_store_that_fails_submits_nothing(tmp_path, configured, service):
    function = configured()["complete_batch_small"]
    async with FunctionEnvironment(key_values=f"file://{tmp_path}/kept") as environment:
        await environment.run(function, ["one"])
        with contextlib.closing(sqlite3.connect(tmp_path / "kept/keyvalue.sqlite3")) as db:
            db.execute("ALTER TABLE entries RENAME TO lost")
        result = await environment.run(function, ["one", "two"], max_attempts=2)
    assert len(result.errors) == 2
    assert result.errors[0].retryable
    assert service.batch_rows == 1


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ("discount = 2", "batch.discount: "), ("poll-interval = 3", "batch.poll-interval: "),
        ("lease = true", "batch.lease: "), ("in-memory = 1", "batch.in-memory: 1 is neither true nor false"),
        ("speed = 1", "batch: has speed; known are discount, window, poll-interval, lease, keep, keep-errors"),
    ],
)  # fmt: skip
def test_a_setting_that_is_not_valid_is_named(configured, batch, message):
    with pytest.raises(InvalidModels, match=message):
        configured(batch)


def test_a_server_needs_a_store_unless_told_otherwise(configured):
    assert configured()["complete_batch_small"].durable_store
    assert not configured("in-memory = true")["complete_batch_small"].durable_store
