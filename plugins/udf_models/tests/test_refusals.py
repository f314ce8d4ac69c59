"""What services answer in place of a completion, and what errors show of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udf_models.refusals import CODES, Refusal, shown_code
from udf_models.testing import Reply
from udf_server.testing import FunctionEnvironment

PROMPT = "my-private.prompt"


async def run(function, *arguments, **options):
    async with FunctionEnvironment() as environment:
        return await environment.run(function, *arguments, **options)


@given(st.text(max_size=80).filter(lambda text: text.lower().replace("-", "_") not in CODES))
def test_a_code_that_is_not_known_is_a_hash(text):
    shown = shown_code(text)
    if not (len(text) == 3 and text.isascii() and text.isdecimal()) and len(text) > 8:
        assert text not in shown
    assert Refusal.of({"code": text, "message": text}).code in {"", shown}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"code": "context_length_exceeded"}, "context_length_exceeded"),
        ({"code": "DeploymentNotFound"}, "deployment_not_found"),
        ({"code": None, "type": "invalid_request_error"}, "invalid_request_error"),
        ({"code": 429, "status": "RESOURCE_EXHAUSTED"}, "429"),
        ({"code": PROMPT, "type": "invalid_request_error"}, "invalid_request_error"),
        ({"code": True}, ""), ({}, ""), (None, ""), ("text", ""), ([PROMPT], ""),
    ],
)  # fmt: skip
def test_codes_have_the_names_of_a_list(error, code):
    assert Refusal.of(error).code == code


@pytest.mark.parametrize("status", [200, 400, 401, 429, 500])
@pytest.mark.parametrize("form", ["code", "type", "status"])
async def test_no_prompt_is_shown_as_a_code(configured, service, status, form):
    complete = configured(service.url)["complete_small"]
    service.script(Reply(status=status, body={"error": {form: PROMPT, "message": PROMPT}}))
    result = await run(complete, [PROMPT], max_attempts=1)
    assert PROMPT not in result.errors[0].message + result.errors[0].traceback
    assert "another code, SHA-256 " in result.errors[0].message


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ({"error": {"code": 429}}, "200 OK (429)"),
        ({"error": {"code": "502", "message": PROMPT}}, "200 OK (502)"),
        ({"error": {"type": "overloaded_error"}}, "200 OK (overloaded_error)"),
        ({"choices": [{"finish_reason": "error", "error": {"code": 503}}]}, "200 OK (503)"),
    ],
)
async def test_an_error_with_a_status_of_success_is_tried_again_if_it_may_pass(configured, service, body, shown):
    complete = configured(service.url)["complete_small"]
    service.script(Reply(body=body), Reply(text="good"))
    assert (await run(complete, ["x"], initial_delay="1 ms")).to_pylist() == ["good"]
    service.script(Reply(body=body, headers={"Retry-After": "0"}))
    result = await run(complete, ["y"], max_attempts=1)
    assert f"the answer is an error: {shown}" in result.errors[0].message
    assert result.errors[0].retryable


@pytest.mark.parametrize("error", [{"code": 400}, {"code": "insufficient_quota"}, {"code": PROMPT}, "not now"])
async def test_another_one_is_not_tried_again(configured, service, error):
    complete = configured(service.url)["complete_small"]
    service.script(Reply(body={"error": error}))
    result = await run(complete, ["x"])
    assert (result.errors[0].attempts, result.errors[0].retryable) == (1, False)
    assert len(service.requests) == 1


PART = {"type": "text", "text": "a "}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([PART, {"type": "text", "text": "b"}], "a b"),
        ([{"type": "thinking", "thinking": "hm"}, PART], "a "),
        ([{"type": "output_text", "text": "b"}], "b"),
        ([{"text": "b"}], "b"),
        ([PART, {"type": "image_url"}], None), ([], None), ([{"type": "thinking"}], None), ([PART, "b"], None),
        ([{"type": "text", "text": 1}], None), ({}, None),
    ],
)  # fmt: skip
async def test_the_text_of_an_answer_may_be_a_list_of_parts(configured, service, content, text):
    complete = configured(service.url)["complete_small"]
    service.script(Reply(body={"choices": [{"message": {"content": content}, "finish_reason": "stop"}]}))
    result = await run(complete, ["x"])
    assert result.values.to_pylist() == [text]
    assert [error.message.splitlines()[0] for error in result.errors.values()] == (
        [] if text else ["ModelError: model 'small': the answer has no text"]
    )


@pytest.mark.parametrize("index", [{"index": None}, {}], ids=json.dumps)
async def test_vectors_without_an_index_are_in_the_order_of_their_texts(configured, service, index):
    embed = configured(service.url, 'functions = ["embed"]')["embed_small"]
    service.script(Reply(body={"data": [{**index, "embedding": [float(place)]} for place in (1, 2)]}))
    assert (await run(embed, ["a", "b"])).to_pylist() == [[1.0], [2.0]]
