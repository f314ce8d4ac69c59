"""Answers with a structure, from a scripted service: validated, repaired once, then the error of their row."""

import json
import logging
import sys

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from udf_models.models_file import InvalidModels
from udf_models.shapes import InvalidAnswer, Shape, schema_of, shape_of
from udf_models.structured import parsed
from udf_models.testing import Reply
from udf_server.testing import FunctionEnvironment

SECRET = "my private answer"
TICKET = '[models.small.answers.ticket]\nreturns = "subject string, urgent boolean, marks array<int>"'
GOOD = {"subject": "login", "urgent": True, "marks": [1, 2]}


async def run(function, *arguments, **options):
    async with FunctionEnvironment() as environment:
        return await environment.run(function, *arguments, **options)


async def test_an_answer_has_the_type_that_the_file_says(configured, service):
    functions = configured(service.url, TICKET)
    assert [function.spec.signature for function in functions.values()] == [
        "complete_json_ticket(prompt string, instructions string = ...) -> "
        "struct<subject:string,urgent:boolean,marks:array<int>>"
    ]
    service.script(Reply(text=json.dumps(GOOD)))
    result = await run(functions["complete_json_ticket"], ["I cannot log in"], ["be exact"])
    assert result.to_pylist() == [GOOD]
    (request,) = service.requests
    assert [message["content"] for message in request.body["messages"]] == ["be exact", "I cannot log in"]
    form = request.body["response_format"]
    assert (form["type"], form["json_schema"]["strict"]) == ("json_schema", True)
    assert form["json_schema"]["schema"] == {
        "type": "object",
        "properties": {
            "subject": {"type": ["string", "null"]},
            "urgent": {"type": ["boolean", "null"]},
            "marks": {"type": ["array", "null"], "items": {"type": "integer"}},
        },
        "required": ["subject", "urgent", "marks"],
        "additionalProperties": False,
    }


async def test_a_service_without_structured_output_gets_the_schema_as_a_message(configured, service):
    functions = configured(service.url, f"structured-output = false\n{TICKET}")
    service.script(Reply(text=f"```json\n{json.dumps(GOOD)}\n```"))
    assert (await run(functions["complete_json_ticket"], ["x"])).to_pylist() == [GOOD]
    (request,) = service.requests
    assert "response_format" not in request.body
    assert json.loads(request.body["messages"][1]["content"])["required"] == ["subject", "urgent", "marks"]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (SECRET, "it is not JSON"),
        ("NaN", "it is not JSON"),
        ("[" * 5000, "it is not JSON"),
        (json.dumps(SECRET), "it breaks the rule type"),
        (json.dumps({**GOOD, SECRET: SECRET}), "it breaks the rule additionalProperties"),
        (json.dumps({**GOOD, "subject": [SECRET]}), "it breaks the rule properties/subject/type"),
        (json.dumps({"subject": SECRET}), "it breaks the rule required"),
        (json.dumps({**GOOD, "marks": [1 << 31]}), "a number is out of the range of int"),
        ('{"subject": "\\ud800", "urgent": null, "marks": null}', "a text is not valid Unicode"),
    ],
)
async def test_an_answer_that_is_not_valid_is_repaired_once(configured, service, caplog, wrong, reason):
    caplog.set_level(logging.DEBUG)
    ticket = configured(service.url, TICKET)["complete_json_ticket"]
    service.script(Reply(text=wrong), Reply(text=json.dumps(GOOD)))
    assert (await run(ticket, ["x"])).to_pylist() == [GOOD]
    said = [message["content"] for message in service.requests[1].body["messages"]]
    assert (said[:2], said[-1]) == (["x", wrong], reason)
    service.script(Reply(text=wrong), Reply(text=wrong))
    result = await run(ticket, ["y"])
    assert f"the answer is not valid, nor was the one before: {reason}" in result.errors[0].message
    assert (result.errors[0].attempts, len(service.requests)) == (1, 4)
    assert SECRET not in result.errors[0].message + result.errors[0].traceback + caplog.text


WRAPPED = {
    "thoughts": '<think>I could say {this} or {"that": 1}.\n</think>\n\n%s',
    "end of thoughts": "so this it is.\n</think>\n%s",
    "other thoughts": "<reasoning>hm</reasoning><think></think>%s",
    "mark": "\ufeff%s",
    "capitals": "```JSON\n%s\n```",
    "one line": "```json %s```",
    "no name": "```\n%s\n```\n",
    "prose": "Here is the answer:\n\n```json\n%s\n```\nLet me know!",
    "prose without a block": "Sure! %s I hope that this helps.",
    "all": "\ufeff<think>\n```json\n{}\n```</think>Here:\n```Json\n%s\n```",
    "twice": "%s\n\nAs a block:\n```json\n%s\n```",
}
_LISTS = st.lists(st.dictionaries(st.text(max_size=3), st.text(max_size=9), max_size=2), max_size=2)
OBJECTS = st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=5) | _LISTS, max_size=3)
ODD = st.sampled_from([{"a": "</think>"}, {"a": "```json {}```"}, {"a": "<think>"}, {"a": {"b": "}\n```"}}])


@pytest.mark.parametrize("wrapped", WRAPPED)
@given(
    answer=OBJECTS | st.sampled_from([{"a": "</think>"}, {"a": "```json {}```"}, {"a": "<think>"}]),
    pretty=st.booleans(),
)
def test_the_only_object_of_an_answer_is_found_in_what_models_write_around_it(wrapped, answer, pretty):
    text = json.dumps(answer, indent=2 if pretty else None, ensure_ascii=False)
    assert parsed(WRAPPED[wrapped].replace("%s", text)) == answer


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1} or {"a": 2}', '```json\n{"a": 1}\n```\n```json\n{"a": 2}\n```', '{"a": {"b": 1}', "[1] and [2]",
        '<think>{"a": 1}', 'the set {1} and {"a": 1}', "", "```json\n```", "{" * 5000, '{"a": NaN}', '{"a": 1}}{',
    ],
)  # fmt: skip
def test_an_answer_that_could_mean_several_things_is_not_taken(text):
    with pytest.raises(InvalidAnswer, match=r"it is not JSON|it has several objects"):
        parsed(text)


async def test_such_an_answer_is_paid_once(configured, service):
    ticket = configured(service.url, TICKET)["complete_json_ticket"]
    for text in WRAPPED.values():
        service.script(Reply(text=text.replace("%s", json.dumps(GOOD))))
    result = await run(ticket, [str(number) for number in range(len(WRAPPED))], buffer_capacity=1)
    assert result.to_pylist() == [GOOD] * len(WRAPPED)
    assert len(service.requests) == len(WRAPPED)


async def test_a_cut_answer_is_not_repaired(configured, service):
    ticket = configured(service.url, TICKET)["complete_json_ticket"]
    service.script(Reply(text='{"subject": ', finish_reason="length"))
    assert "is cut at the maximum" in (await run(ticket, ["x"])).errors[0].message
    assert len(service.requests) == 1


async def test_a_failure_between_the_two_answers_is_tried_again(configured, service):
    ticket = configured(service.url, TICKET)["complete_json_ticket"]
    service.script(Reply(text="{"), Reply(status=503), Reply(text=json.dumps(GOOD)))
    assert (await run(ticket, ["x"], initial_delay="1 ms")).to_pylist() == [GOOD]


async def test_a_text_gets_one_of_its_labels(configured, service):
    classify = configured(service.url, 'functions = ["classify"]')["classify_small"]
    assert classify.spec.signature == (
        "classify_small(text string, labels array<string>, instructions string = ...) -> string"
    )
    service.answer = lambda request: json.dumps({"label": "angry" if "!" in request.prompt else "kind"})
    labels = ["kind", "angry", "kind"]
    result = await run(classify, ["help!", "please", None], [labels] * 3, ["of customers"] * 3)
    assert result.to_pylist() == ["angry", "kind", None]
    body = service.requests[0].body
    assert [message["content"] for message in body["messages"]][1:3] == ['["kind", "angry"]', "of customers"]
    assert body["response_format"]["json_schema"]["schema"]["properties"] == {
        "label": {"type": "string", "enum": ["kind", "angry"]}
    }


@pytest.mark.parametrize("wrong", ['{"label": "other"}', '{"label": ["a"]}', '{"label": null}', '["a"]', "a"])
async def test_a_label_that_was_not_offered_is_repaired_once(configured, service, wrong):
    classify = configured(service.url, 'functions = ["classify"]')["classify_small"]
    service.script(Reply(text=wrong), Reply(text='{"label": "a"}'))
    assert (await run(classify, ["x"], [["a", "b"]])).to_pylist() == ["a"]
    service.script(Reply(text=wrong), Reply(text=wrong))
    assert list((await run(classify, ["x"], [["a", "b"]])).errors) == [0]


async def test_fields_of_a_text_are_found_by_their_names(configured, service):
    extract = configured(service.url, 'functions = ["extract"]')["extract_small"]
    assert extract.spec.signature.endswith("-> map<string,string>")
    service.script(Reply(text='{"name": "Ada", "city": null, "more": 1}'))
    result = await run(extract, ["I am Ada"], [["name", "city", "name"]])
    assert result.to_pylist() == [{"name": "Ada", "city": None}]


@pytest.mark.parametrize("wrong", ['{"name": 5}', '{"name": "\\ud800"}', '["name"]'])
async def test_a_field_that_is_no_text_is_repaired_once(configured, service, wrong):
    extract = configured(service.url, 'functions = ["extract"]')["extract_small"]
    service.script(Reply(text=wrong), Reply(text='{"name": "Ada"}'))
    assert (await run(extract, ["x"], [["name"]])).to_pylist() == [{"name": "Ada"}]
    assert len(service.requests) == 2


@pytest.mark.parametrize("operation", ["classify", "extract"])
async def test_names_that_are_missing_are_errors_without_a_request(configured, service, operation):
    function = configured(service.url, f'functions = ["{operation}"]')[f"{operation}_small"]
    result = await run(function, ["x", "x"], [[], ["a", None]])
    assert list(result.errors) == [0, 1]
    assert service.requests == []


async def test_texts_are_ranked_best_first(configured, service):
    rerank = configured(service.url, 'functions = ["rerank"]')["rerank_small"]
    assert rerank.spec.signature == (
        "rerank_small(query string, texts array<string>) -> array<struct<position:int,score:double>>"
    )
    result = await run(rerank, ["lost parcel"] * 3, [["hello", "a lost parcel", "a parcel"], [], [None]])
    assert result.values.to_pylist() == [
        [{"position": 1, "score": 1.0}, {"position": 2, "score": 0.5}, {"position": 0, "score": 0.0}], [], None,
    ]  # fmt: skip
    assert list(result.errors) == [2]
    assert len(service.requests) == 1


@pytest.mark.parametrize(
    "results",
    [
        None,
        [{"index": 0, "relevance_score": 1}],
        [{"index": 0, "relevance_score": 1}, {"index": 0, "relevance_score": 1}],
        [{"index": 0, "relevance_score": 1}, {"index": 2, "relevance_score": 1}],
        [{"index": 0, "relevance_score": 1}, {"index": 1, "relevance_score": 10**400}],
        [{"index": 0, "relevance_score": 1}, {"index": 1, "relevance_score": "1"}],
        [{"index": 0, "relevance_score": 1}, {"index": True, "relevance_score": 1}],
        [1, 2],
    ],
)
async def test_scores_that_are_not_as_expected_are_errors(configured, service, results):
    rerank = configured(service.url, 'functions = ["rerank"]')["rerank_small"]
    service.script(Reply(body={"results": results}))
    assert "ModelError: model 'small': " in (await run(rerank, ["q"], [["a", "b"]])).errors[0].message


PRICED = {
    "$defs": {"money": {"type": "object", "properties": {"amount": {"type": "number", "minimum": 0}}}},
    "type": "object",
    "properties": {
        "kind": {"enum": ["a", "b"]},
        "price": {"anyOf": [{"$ref": "#/$defs/money"}, {"type": "null"}]},
        "count": {"type": ["integer", "null"]},
    },
    "required": ["kind"],
}


async def test_a_json_schema_is_a_type_and_a_rule(configured, service, tmp_path):
    (tmp_path / "priced.json").write_text(json.dumps(PRICED))
    priced = configured(service.url, '[models.small.answers.priced]\nschema = "priced.json"')["complete_json_priced"]
    assert priced.spec.signature.endswith("-> struct<kind:string,price:struct<amount:double>,count:bigint>")
    service.script(Reply(text='{"kind": "a", "price": {"amount": 2}, "count": 3.0, "more": []}'))
    assert (await run(priced, ["x"])).to_pylist() == [{"kind": "a", "price": {"amount": 2.0}, "count": 3}]
    service.script(Reply(text='{"kind": "a", "price": {"amount": -1}}'), Reply(text='{"kind": "b"}'))
    assert (await run(priced, ["y"])).to_pylist() == [{"kind": "b", "price": None, "count": None}]
    assert service.requests[-1].prompt == "it breaks the rule properties/price/anyOf"


def test_a_dataclass_is_a_type_and_a_schema(tmp_path, monkeypatch):
    (tmp_path / "acme_answers.py").write_text(
        "from dataclasses import dataclass\n\n@dataclass\nclass Ticket:\n    subject: str\n    tags: list[str]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "acme_answers", raising=False)
    shape = shape_of({"dataclass": "acme_answers:Ticket"}, tmp_path)
    assert shape.type == pa.struct({"subject": pa.string(), "tags": pa.list_(pa.field("element", pa.string()))})
    assert shape.value({"subject": "a", "tags": ["b"]}) == {"subject": "a", "tags": ["b"]}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("[models.small.answers]\nticket = 5", "answers.ticket: expected one of returns, schema and dataclass"),
        ("[models.small.answers.'a b']\nreturns = 'a int'", "answers.a b: its name becomes part of names"),
        ("[models.small.answers.a]\nreturns = 5", "returns: 5 is not text"),
        ("[models.small.answers.a]\nreturns = 'a date'", "returns: date is not supported"),
        ("[models.small.answers.a]\nreturns = 'a wat'", "is not a Spark type"),
        ("[models.small.answers.a]\nreturns = 'a string, A int'", "Spark takes the names 'a' and 'A' for the same"),
        ("[models.small.answers.a]\nreturns = 'x array<struct<b:int,B:int>>'", "the names 'b' and 'B' for the same"),
        ("[models.small.answers.a]\nschema = 'absent.json'", "No such file"),
        ("[models.small.answers.a]\ndataclass = 'no_such:Thing'", "cannot be imported; expected module:Class"),
        ("[models.small.answers.a]\ndataclass = 'json:JSONDecoder'", "is not a dataclass"),
    ],
)
def test_a_wrong_table_is_refused_with_the_reason(configured, table, message):
    with pytest.raises(InvalidModels) as caught:
        configured("http://x/", table)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ([], "is not an object"),
        ({"type": "string"}, "is not of an object"),
        ({"type": 5}, "the JSON schema is not valid"),
        ({"type": "object", "properties": {"a": {}}}, "$.a: has no type of Spark"),
        ({"type": "object", "properties": {"a": {"type": ["string", "integer"]}}}, "$.a: has no type of Spark"),
        ({"type": "object", "properties": {"a": {"type": "array"}}}, "$.a: has no type of Spark"),
        ({"type": "object", "properties": {"a": {"$ref": "http://evil/"}}}, "$.a: $ref 'http://evil/' is not in $defs"),
        (
            {"$defs": {"b": {"type": "array", "items": {"$ref": "#/$defs/b"}}}, "type": "object",
             "properties": {"a": {"$ref": "#/$defs/b"}}},
            "refers to itself",
        ),
    ],
)  # fmt: skip
def test_a_schema_without_a_type_of_spark_is_refused(tmp_path, schema, message):
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        shape_of({"schema": "schema.json"}, tmp_path)
    assert message in str(caught.value)


leaves = st.sampled_from([pa.string(), pa.bool_(), pa.int8(), pa.int32(), pa.int64(), pa.float32(), pa.float64()])
types = st.recursive(
    leaves,
    lambda inner: st.one_of(
        inner.map(lambda each: pa.list_(pa.field("element", each))),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(pa.struct),
    ),
    max_leaves=5,
)
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text("a\ud800", max_size=2)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=6,
)


@given(types, anything)
def test_what_a_shape_accepts_fits_its_type_and_all_else_is_an_invalid_answer(type_, found):
    shape = Shape(schema_of(type_), type_)
    try:
        value = shape.value(found)
    except InvalidAnswer:
        return
    assert pa.array([value], type_).type == type_
