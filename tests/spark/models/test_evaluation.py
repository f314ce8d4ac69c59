"""ML_EVALUATE: metrics of a model, compared with those that the definitions give."""

import math

import pytest

import udf_server as udf
from spark_client import PlanError


@udf.scalar
async def named(text: str | None) -> str | None:
    return None if text is None else text.strip("!")


@udf.scalar
async def doubled(value: float | None) -> float | None:
    return None if value is None else 2 * value


@udf.scalar
async def pair(text: str) -> dict[str, int]:
    return {text: 1}


@pytest.fixture
def session(remote, spark):
    def view(rows, schema):
        spark.createDataFrame(rows, schema).createOrReplaceTempView("labelled")

    session = remote(named, doubled, pair)
    session.view = view
    yield session
    spark.catalog.dropTempView("labelled")


def metrics(session, model, task, more=""):
    call = f"ML_EVALUATE(TABLE labelled, MODEL {model}, DESCRIPTOR(label), DESCRIPTOR(x), '{task}'{more})"
    found = session.sql(f"SELECT * FROM {call}")
    assert found.schema.simpleString() == "struct<result:map<string,double>>"
    (row,) = found.collect()
    return row.result


@pytest.mark.connect
def test_classes_are_compared_one_by_one(session):
    pairs = [("a", "a"), ("a", "a!"), ("a", "b"), ("b", "b"), ("c", "a"), (None, "a"), ("b", None)]
    session.view(pairs, "label string, x string")
    found = metrics(session, "named", "classification", ", MAP['max-concurrent-operations', '3']")
    # Of a: 2 right of 3 results and 3 labels. Of b: 1 of 2 and 1. Of c: none of 0 and 1.
    assert found.pop("accuracy") == pytest.approx(3 / 5)
    assert found.pop("precision") == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    assert found.pop("recall") == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert found.pop("f1") == pytest.approx((2 / 3 + 2 / 3 + 0) / 3)
    assert found == {"rows": 5, "skipped": 2}


def test_numbers_are_compared_by_their_distance(session):
    session.view([(2, 1.0), (5, 2.0), (9, 4.0), (None, 3.0), (7, None)], "label int, x double")
    found = metrics(session, "doubled", "REGRESSION")
    mean = sum((2, 5, 9)) / 3
    squares, spread = (0 + 1 + 1) / 3, sum((each - mean) ** 2 for each in (2, 5, 9)) / 3
    assert found.pop("r2") == pytest.approx(1 - squares / spread)
    assert found.pop("rmse") == pytest.approx(math.sqrt(squares))
    assert found == pytest.approx({"mae": 2 / 3, "mse": squares, "rows": 3, "skipped": 2})


def test_texts_are_compared_by_their_words(session):
    session.view([("The cat sat", "the cat the!"), ("so be it", "so be it"), (None, "x")], "label string, x string")
    found = metrics(session, "named", "text_generation")
    # `the` is once in the label, so it counts once: 2 words of 3 and 3.
    shared = pytest.approx((2 / 3 + 1) / 2)
    assert found == {
        "exact_match": 0.5, "rouge1_precision": shared, "rouge1_recall": shared, "rouge1_f1": shared, "rows": 2,
        "skipped": 1,
    }  # fmt: skip


def test_without_rows_there_are_no_values(session):
    session.view([], "label string, x string")
    found = metrics(session, "named", "classification")
    assert found == {"accuracy": None, "precision": None, "recall": None, "f1": None, "rows": 0, "skipped": 0}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("MODEL named, DESCRIPTOR(label), DESCRIPTOR(x), 'clustering'",
         "TASK is one of 'classification', 'regression', 'text_generation', not 'clustering'"),
        ("MODEL named, DESCRIPTOR(label), DESCRIPTOR(x)", "lacks the argument TASK; it takes INPUT, "),
        ("MODEL named, 'label', DESCRIPTOR(x), 'classification'", "LABEL must be DESCRIPTOR.* found 'label'"),
        ("MODEL named, DESCRIPTOR(y), DESCRIPTOR(x), 'classification'", "no column 'y'; it has label, x"),
        ("MODEL named, DESCRIPTOR(label), DESCRIPTOR(x), 'regression'", "label 'label' is string .* compares numbers"),
        ("MODEL named, DESCRIPTOR(label), DESCRIPTOR(x), 'regression', MAP['k', '1']", "CONFIG has no option 'k'"),
    ],
)  # fmt: skip
def test_an_evaluation_that_cannot_be_planned_is_refused_with_its_place(session, call, message):
    session.view([("a", "a")], "label string, x string")
    with pytest.raises(PlanError, match=f"line 1, column 15: ML_EVALUATE:? .*{message}"):
        session.sql(f"SELECT * FROM ML_EVALUATE(TABLE labelled, {call})")
