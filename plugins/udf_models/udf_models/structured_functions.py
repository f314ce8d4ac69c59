"""The functions whose answers are JSON: complete_json, classify and extract."""

import json
from collections.abc import Callable
from typing import Any

import udf_server as udf
from udf_models.client import ModelError
from udf_models.declaring import Connected, bytes_of, declared
from udf_models.models import Model
from udf_models.shapes import InvalidAnswer, Shape, require_unicode
from udf_models.structured import Question, ask

__all__ = [
    "CLASSIFY", "classify", "complete_json", "extract", "label_question", "label_reader", "labels_cost", "names_of",
]  # fmt: skip

CLASSIFY = "Choose the label that fits the text of the user best. The labels are in the next message."
EXTRACT = (
    "Extract the fields from the text of the user. A field that the text does not have is null. The names of the "
    "fields are in the next message."
)


def complete_json(model: Model, name: str, shape: Shape) -> udf.Function:
    """The function of an answer in the file: its value has the type of the shape."""
    connected = Connected(model)
    schema = json.dumps(shape.schema)

    async def eval_(context: udf.CallContext, prompt: str, instructions: str = "") -> Any:
        return await ask(connected.client, Question(prompt, shape.schema, [instructions]), shape.value, context)

    def cost(prompt: str, instructions: str = "") -> dict[str, float]:
        return model.estimate(bytes_of(prompt, instructions, schema), answers=True)

    return declared(
        connected, "complete_json", eval_, name=name, fixed=schema, cost=cost, returns=shape.type,
        description=f"The answer of {model.model} to a prompt, as {name}. `instructions` are a system message.",
    )  # fmt: skip


def classify(model: Model) -> udf.Function:
    """The function that chooses a label."""
    connected = Connected(model)

    async def eval_(context: udf.CallContext, text: str, labels: list[str], instructions: str = "") -> str:
        names = names_of(labels, "labels", model)
        return await ask(connected.client, label_question(text, names, instructions), label_reader(names), context)

    return declared(
        connected, "classify", eval_, fixed=CLASSIFY, cost=labels_cost(model, CLASSIFY),
        description=f"The label that fits a text best, by {model.model}. `instructions` are a system message.",
    )  # fmt: skip


def label_question(text: str, names: list[str], instructions: str) -> Question:
    """Ask for one of the labels."""
    schema = _object({"label": {"type": "string", "enum": names}})
    return Question(text, schema, [CLASSIFY, json.dumps(names, ensure_ascii=False), instructions])


def label_reader(names: list[str]) -> Callable[[Any], str]:
    """Return what reads the label of an answer. It raises InvalidAnswer for any other label."""

    def label(found: Any) -> str:
        chosen = found.get("label") if isinstance(found, dict) else None
        if chosen not in names:
            raise InvalidAnswer("it has no label, or one that was not offered")
        return str(chosen)

    return label


def extract(model: Model) -> udf.Function:
    """The function that finds fields."""
    connected = Connected(model)

    async def eval_(
        context: udf.CallContext, text: str, fields: list[str], instructions: str = ""
    ) -> dict[str, str | None]:
        names = names_of(fields, "fields", model)

        def values(found: Any) -> dict[str, str | None]:
            if not isinstance(found, dict):
                raise InvalidAnswer("it is not an object")
            values = {name: found.get(name) for name in names}
            for value in values.values():
                if value is not None and not isinstance(value, str):
                    raise InvalidAnswer("a field is neither text nor null")
                require_unicode(value or "")
            return values

        schema = _object({name: {"type": ["string", "null"]} for name in names})
        question = Question(text, schema, [EXTRACT, json.dumps(names, ensure_ascii=False), instructions])
        return await ask(connected.client, question, values, context)

    return declared(
        connected, "extract", eval_, fixed=EXTRACT, cost=labels_cost(model, EXTRACT), returns="map<string,string>",
        description=f"The fields of a text by their names, by {model.model}. `instructions` are a system message.",
    )  # fmt: skip


def labels_cost(model: Model, task: str) -> Callable[..., dict[str, float]]:
    """Return what estimates the cost of a call with a text, names and instructions."""

    def cost(text: str, names: list[str], instructions: str = "") -> dict[str, float]:
        # The names are in a message and in the schema.
        return model.estimate(bytes_of(task, text, instructions) + 2 * bytes_of(*names), answers=True)

    return cost


def names_of(found: list[str], what: str, model: Model) -> list[str]:
    """The different names, in their order. Raises ModelError if there is none, or a null."""
    if not found or None in found:
        raise ModelError(f"model {model.name!r}: {what} is empty or has a null")
    return list(dict.fromkeys(found))


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
