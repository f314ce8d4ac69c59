"""Embeddings are compared with the model's own code, with their definition, and with plausible similarities."""

import asyncio
import importlib.metadata
import json
import math
import socket
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from udf_embeddings import cosine_similarity, embed_text
from udf_server.testing import FunctionEnvironment


async def values(function, *arguments, **options):
    async with FunctionEnvironment() as environment:
        return (await environment.run(function, *arguments, **options)).to_pylist()


async def alike(one, other):
    async with FunctionEnvironment() as environment:
        left, right = [(await environment.run(embed_text, texts)).values for texts in (one, other)]
        return (await environment.run(cosine_similarity, left, right)).to_pylist()


async def test_an_embedding_is_256_floats_of_length_one():
    vectors = np.array(await values(embed_text, ["a lamp", "für Elise", "x" * 1000]))
    assert vectors.shape == (3, 256)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1.0] * 3, abs=1e-6)


def test_embeddings_are_those_of_the_model_s_own_code():
    texts = ["How do I reset my password?", "lamp", "Straße 東京 🙂", "word " * 300]
    reference = """
import json, pathlib, sys, wordllama
folder = pathlib.Path(wordllama.__file__).parent
model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
print(json.dumps(model.embed(json.loads(sys.argv[1]), norm=True).tolist()))
"""
    done = subprocess.run([sys.executable, "-c", reference, json.dumps(texts)], check=True, capture_output=True)
    np.testing.assert_allclose(asyncio.run(values(embed_text, texts)), json.loads(done.stdout), atol=1e-5)


async def test_texts_about_the_same_are_more_alike():
    login, weather, repair = "I forgot my login credentials", "The weather is nice today", "My car needs repair"
    asked = ["How do I reset my password?", "Will it rain tomorrow?", "Where is a garage for my vehicle?"]
    for place, question in enumerate(asked):
        cosines = await alike([question] * 3, [login, weather, repair])
        assert cosines.index(max(cosines)) == place


async def test_a_text_without_a_word_has_no_embedding():
    found = await values(embed_text, ["", " \n", None, "a"])
    assert [vector is None for vector in found] == [True, True, True, False]


async def test_how_texts_are_cut_into_batches_makes_no_difference():
    texts = [f"text number {number} " * (number % 7) for number in range(600)]
    assert await values(embed_text, texts, batch_rows=17) == await values(embed_text, texts)


async def test_a_very_long_text_is_the_mean_of_all_its_words():
    short, long = await values(embed_text, ["a lamp and a pen. ", "a lamp and a pen. " * 40_000])
    assert np.dot(short, long) == pytest.approx(1.0, abs=1e-2)


async def test_nothing_is_asked_of_the_network(monkeypatch):
    def refuse(*address):
        pytest.fail(f"connects to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert len((await values(embed_text, ["lamp"]))[0]) == 256


def test_the_model_s_own_package_is_not_imported():
    """Importing it would configure the logging of the server's process."""
    code = (
        "import asyncio, sys, udf_embeddings.model as m; m.Model().embed(['a']); assert 'wordllama' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_cosines_are_those_of_the_definition():
    a = [[1.0, 0.0], [1.0, 1.0], [1.0, 2.0], [3.0, 4.0], [], [0.0, 0.0], None]
    b = [[0.0, 2.0], [2.0, 2.0], [-1.0, -2.0], [4.0, 3.0], [], [1.0, 1.0], [1.0]]
    assert await values(cosine_similarity, a, b) == pytest.approx([0.0, 1.0, -1.0, 0.96, None, None, None])


vectors = st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3)


@given(st.lists(st.tuples(vectors, vectors), max_size=5))
def test_cosines_are_the_same_both_ways_and_lie_from_minus_one_to_one(pairs):
    a, b = (pa.array([pair[side] for pair in pairs], pa.list_(pa.float32())) for side in (0, 1))
    cosines = cosine_similarity(a, b).to_pylist()
    assert cosine_similarity(b, a).to_pylist() == cosines
    for (one, other), cosine in zip(pairs, cosines, strict=True):
        lengths = math.hypot(*one) * math.hypot(*other)
        if cosine is None:
            assert lengths == 0
        else:
            assert -1 <= cosine <= 1
            assert cosine == pytest.approx(float(np.dot(one, other)) / lengths, abs=1e-6)


async def test_vectors_that_cannot_be_compared_fail_alone():
    async with FunctionEnvironment() as environment:
        a = [[1.0, 0.0], [1.0], [1.0, None], [math.nan, 1.0], [1.0, 1.0]]
        result = await environment.run(cosine_similarity, a, [[1.0, 0.0]] * 5)
    assert result.values.to_pylist() == [1.0, None, None, None, pytest.approx(math.sqrt(0.5))]
    assert "vectors of different lengths: 1 and 2" in result.errors[1].message
    assert "null or not finite" in result.errors[2].message
    assert "null or not finite" in result.errors[3].message


def test_the_installed_package_is_a_plugin():
    (point,) = importlib.metadata.entry_points(group="udf_server", name="embeddings")
    assert [function.spec.name for function in point.load().udf_functions()] == ["cosine_similarity", "embed_text"]
