"""Functions that return what a call has cost, and functions that return how confident a model is of a label."""

import functools
import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udf_models.models import OPERATIONS
from udf_models.models_file import InvalidModels
from udf_models.testing import Reply
from udf_models.usage import parts_of
from udf_server.testing import FunctionEnvironment

PRICES = "usd-per-million-tokens-in = 1000000\nusd-per-million-tokens-out = 2000000\nwith-usage = true"
USAGE = "tokens_in:bigint,tokens_out:bigint,usd:double"
CONFIDENT = 'functions = ["classify_with_confidence"]'
LABELS = ["account", "account closed", "label"]


@pytest.fixture
def configured(configured, service):
    """`configured(settings)` does this with the URL of the service."""
    return functools.partial(configured, service.url)


async def run(function, *arguments, **options):
    async with FunctionEnvironment() as environment:
        return await environment.run(function, *arguments, **options)


def test_each_function_but_those_of_batches_has_a_twin_with_usage(configured):
    names = ", ".join(f'"{name}"' for name in OPERATIONS)
    table = f'functions = [{names}]\n{PRICES}\n[models.small.answers.ticket]\nreturns = "urgent boolean"'
    functions = configured(table)
    twins = {name: function.spec.signature for name, function in functions.items() if "_with_usage_" in name}
    assert {name: signature.partition(" -> ")[2] for name, signature in twins.items()} == {
        "complete_with_usage_small": f"struct<value:string,{USAGE}>",
        "complete_image_with_usage_small": f"struct<value:string,{USAGE}>",
        "classify_with_usage_small": f"struct<value:string,{USAGE}>",
        "classify_with_confidence_with_usage_small": f"struct<value:struct<value:string,confidence:double>,{USAGE}>",
        "extract_with_usage_small": f"struct<value:map<string,string>,{USAGE}>",
        "embed_with_usage_small": f"struct<value:array<float>,{USAGE}>",
        "rerank_with_usage_small": f"struct<value:array<struct<position:int,score:double>>,{USAGE}>",
        "complete_json_with_usage_ticket": f"struct<value:struct<urgent:boolean>,{USAGE}>",
    }
    for name, signature in twins.items():
        plain = functions[name.replace("_with_usage", "")].spec.signature
        assert signature.partition("(")[2].partition(" -> ")[0] == plain.partition("(")[2].partition(" -> ")[0]


async def test_usage_is_what_the_service_counts(configured):
    complete = configured(PRICES)["complete_with_usage_small"]
    result = await run(complete, ["one two three", None], ["be kind", ""])
    assert result.to_pylist() == [{"value": "one two three", "tokens_in": 5, "tokens_out": 3, "usd": 11.0}, None]


async def test_usage_counts_the_repaired_answer_too(configured, service):
    classify = configured(f'functions = ["classify"]\n{PRICES}')["classify_with_usage_small"]
    service.script(Reply(text="wrong answer"), Reply(text='{"label": "a"}'))
    (found,) = (await run(classify, ["x"], [["a", "b"]])).to_pylist()
    assert (found["value"], found["tokens_out"]) == ("a", 2 + 2)
    first, second = (request.body["messages"] for request in service.requests)
    assert found["tokens_in"] == sum(len(message["content"].split()) for message in [*first, *second])
    assert found["usd"] == found["tokens_in"] + 2 * found["tokens_out"]


async def test_without_prices_usd_is_null_and_without_usage_all_of_it_is(configured, service):
    complete = configured("with-usage = true")["complete_with_usage_small"]
    choices = [{"message": {"content": "good"}, "finish_reason": "stop"}]
    service.script(Reply(body={"choices": choices}))
    assert (await run(complete, ["x"])).to_pylist() == [
        {"value": "good", "tokens_in": None, "tokens_out": None, "usd": None}
    ]
    assert (await run(complete, ["y"])).to_pylist() == [{"value": "y", "tokens_in": 1, "tokens_out": 1, "usd": None}]


async def test_texts_of_a_request_share_its_usage_by_their_bytes_and_none_is_lost(configured, service):
    embed = configured(f'functions = ["embed"]\n{PRICES}')["embed_with_usage_small"]
    used = {"prompt_tokens": 100, "total_tokens": 100}
    vectors = [{"index": place, "embedding": [place, 0.5]} for place in range(4)]
    service.script(Reply(body={"data": vectors, "usage": used}))
    found = (await run(embed, ["", "aaa", "éé", "b" * 29, None])).to_pylist()
    assert [row["value"] for row in found[:4]] == [[0.0, 0.5], [1.0, 0.5], [2.0, 0.5], [3.0, 0.5]]
    assert found[4] is None
    assert [row["tokens_in"] for row in found[:4]] == [2, 8, 11, 79]
    assert [(row["tokens_out"], row["usd"]) for row in found[:4]] == [(0, row["tokens_in"]) for row in found[:4]]


@given(tokens=st.integers(0, 10**9), weights=st.lists(st.integers(1, 10**6), min_size=1, max_size=40))
def test_the_parts_of_a_request_add_up_to_it(tokens, weights):
    parts = parts_of({"tokens_in": float(tokens), "tokens_out": 0.0, "usd": tokens / 7}, weights)
    assert sum(part["tokens_in"] for part in parts) == tokens
    assert math.fsum(part["usd"] for part in parts) == pytest.approx(tokens / 7)
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part["tokens_in"] - tokens * weight / sum(weights)) <= 1


async def test_a_request_that_is_not_counted_or_fails_has_no_usage_of_its_texts(configured, service):
    embed = configured(f'functions = ["embed"]\n{PRICES}')["embed_with_usage_small"]
    service.script(Reply(body={"data": [{"index": 0, "embedding": [1]}]}))
    (found,) = (await run(embed, ["a"])).to_pylist()
    assert found == {"value": [1.0], "tokens_in": None, "tokens_out": None, "usd": None}
    service.script(Reply(body={"data": [], "usage": {"prompt_tokens": 5}}))
    assert "has 0 vectors for 2 texts" in (await run(embed, ["b", "c"])).errors[1].message


@pytest.mark.parametrize(
    ("label", "confidence"), [("account", 0.8), ("account closed", 0.64), ("label", 0.8)]
)  # fmt: skip
async def test_the_confidence_is_the_probability_of_the_tokens_of_the_label(configured, service, label, confidence):
    classify = configured(CONFIDENT)["classify_with_confidence_small"]
    assert classify.spec.signature.endswith("-> struct<value:string,confidence:double>")
    service.script(Reply(text=json.dumps({"label": label}), probability=0.8))
    (found,) = (await run(classify, ["x"], [LABELS])).to_pylist()
    assert found == {"value": label, "confidence": pytest.approx(confidence)}
    assert service.requests[0].body["logprobs"] is True


async def test_tokens_may_end_within_a_character(configured, service):
    classify = configured(CONFIDENT)["classify_with_confidence_small"]
    text = '{"label": "é"}'
    pieces = [(text.encode()[:12], 0.0), (text.encode()[12:13], math.log(0.5)), (text.encode()[13:], math.log(0.5))]
    content = [{"token": "?", "bytes": list(piece), "logprob": logprob} for piece, logprob in pieces]
    choice = {"message": {"content": text}, "finish_reason": "stop", "logprobs": {"content": content}}
    service.script(Reply(body={"choices": [choice]}))
    (found,) = (await run(classify, ["x"], [["é", "e"]])).to_pylist()
    assert found == {"value": "é", "confidence": pytest.approx(0.25)}


@pytest.mark.parametrize(
    ("logprobs", "message"),
    [
        (None, "has no logprobs, which the confidence is computed from; .*, set confidence-samples"),
        ({"content": []}, "has no logprobs"),
        ({"content": ["a"]}, "are not lists of tokens"),
        ({"content": [{"token": 5, "logprob": 0}]}, "are not lists of tokens"),
        ({"content": [{"token": "a", "bytes": [256], "logprob": 0}]}, "are not lists of tokens"),
        ({"content": [{"token": "other", "logprob": 0}]}, "are not those of its label"),
        ({"content": [{"token": '"a"', "logprob": "0"}]}, "a logprob of the answer is not a number"),
    ],
)
async def test_probabilities_that_are_not_as_expected_are_errors(configured, service, logprobs, message):
    classify = configured(CONFIDENT)["classify_with_confidence_small"]
    choice = {"message": {"content": '{"label": "a"}'}, "finish_reason": "stop", "logprobs": logprobs}
    service.script(Reply(body={"choices": [choice]}))
    result = await run(classify, ["x"], [["a", "b"]])
    assert re.search(message, result.errors[0].message)


async def test_samples_are_compared_if_the_service_has_no_probabilities(configured, service):
    classify = configured(f"{CONFIDENT}\nconfidence-samples = 4")["classify_with_confidence_small"]
    service.script(*(Reply(text=json.dumps({"label": label})) for label in "abaa"))
    (found,) = (await run(classify, ["x"], [["a", "b"]])).to_pylist()
    assert found == {"value": "a", "confidence": 0.75}
    assert len(service.requests) == 4
    assert "logprobs" not in service.requests[0].body


async def test_a_sample_that_fails_is_tried_again_as_a_call(configured, service):
    classify = configured(f"{CONFIDENT}\nconfidence-samples = 2")["classify_with_confidence_small"]
    service.answer = lambda request: '{"label": "a"}'
    service.script(Reply(status=503))
    (found,) = (await run(classify, ["x"], [["a"]], initial_delay="1 ms")).to_pylist()
    assert found == {"value": "a", "confidence": 1.0}


def test_the_estimate_has_the_cost_of_all_samples(configured):
    once = configured(CONFIDENT)["classify_with_confidence_small"].cost("text", ["a"])
    assert configured(f"{CONFIDENT}\nconfidence-samples = 3")["classify_with_confidence_small"].cost("text", ["a"]) == {
        unit: 3 * amount for unit, amount in once.items()
    }


@pytest.mark.parametrize("samples", [1, 101, -3])
def test_a_number_of_samples_is_checked(configured, samples):
    with pytest.raises(InvalidModels, match=f"confidence-samples: {samples} is not a number from 2 to 100"):
        configured(f"{CONFIDENT}\nconfidence-samples = {samples}")
