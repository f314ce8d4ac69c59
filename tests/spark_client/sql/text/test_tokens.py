"""Words that are names for Spark, and not for sqlglot, are names where nothing else can stand."""

import pytest
from sqlglot import exp

from spark_client import PlanError
from spark_client.sql.text.parsing import Text
from spark_client.sql.text.writers import written

WORDS = (
    "all", "alter", "and", "as", "between", "case", "create", "cross", "cube", "describe", "distinct", "drop", "else",
    "except", "explain", "fetch", "for", "from", "glob", "grant", "having", "if", "ilike", "inner", "insert",
    "intersect", "into", "join", "lateral", "like", "limit", "lock", "minus", "not", "object", "offset", "on", "or",
    "outer", "partitioned_by", "qualify", "range", "returning", "rlike", "rollback", "rollup", "select", "tablesample",
    "then", "uncache", "union", "using", "values", "when", "where", "with", "xor",
)  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_a_word_is_a_name(word):
    for query, names in (
        (f"SELECT f({word}), g(1, {word}) + {word}.x FROM t WHERE {word} > 1", {word, "t"}),
        (f"SELECT a AS {word} FROM {word}", {word, "a"}),
        (f"SELECT a FROM t ORDER BY -{word} DESC, {word}.a NULLS LAST, 1 = {word} NULLS FIRST", {word, "a", "t"}),
        (f"WITH {word} AS (SELECT 1) SELECT f({word}.x) FROM {word} JOIN {word} AS b ON a = b.a", {word, "a", "b"}),
    ):
        tree = Text(query, None, {}).tree
        found = {each.parts[0].name for each in tree.find_all(exp.Column)}
        assert found | {each.alias_or_name for each in tree.find_all(exp.Table, exp.CTE)} == names
        assert not list(tree.find_all(exp.Star, exp.Placeholder)) and written(tree) == query


def columns_of(query):
    """The names of the columns, of a query that is written as it was read."""
    tree = Text(query, None, {}).tree
    assert not list(tree.find_all(exp.Star)) and written(tree) == query
    return [each.name for each in tree.find_all(exp.Column)]


@pytest.mark.parametrize("word", [word for word in WORDS if word not in ("all", "distinct", "not")])
def test_a_word_before_a_sign_is_a_name(word):
    for sign in "+-*":
        query = f"SELECT f(1, {word} {sign} 1), {word} {sign} INTERVAL 1 DAY, 2 * {word} {sign} (2) FROM t"
        assert columns_of(query) == [word] * 3
    assert columns_of("SELECT f(NOT -a), CASE -a WHEN 1 THEN -a END, CASE WHEN -a THEN 1 END FROM t") == ["a"] * 4


@pytest.mark.parametrize("word", WORDS)
def test_a_word_after_all_or_distinct_or_a_dot_is_a_name(word):
    query = f"SELECT ALL {word}, a FROM t UNION SELECT DISTINCT {word} FROM t"
    assert columns_of(query) == [word, "a", word]
    assert (
        columns_of(f"SELECT f(DISTINCT {word}), f(ALL {word}), NOT {word}, t.{word}, t.{word} + 1 FROM t") == [word] * 5
    )


@pytest.mark.parametrize(
    "word", ["between", "case", "create", "else", "fetch", "like", "on", "select", "values", "when"]
)
def test_a_word_after_an_operand_or_a_table_is_an_alias(word):
    tree = Text(f"SELECT a {word}, f(b) {word} FROM t {word} WHERE c ORDER BY d", None, {}).tree
    assert [item.alias for item in tree.expressions] == [word] * 2
    assert tree.args["from_"].this.alias == word and tree.args["where"].this.name == "c"


def test_case_is_a_name_where_no_branch_follows():
    query = (
        "SELECT case, CASE WHEN case THEN case ELSE case END, CASE a WHEN CASE WHEN b THEN c END THEN case END FROM t"
    )
    assert columns_of(query).count("case") == 5
    query = "SELECT a FROM t WHERE case > CASE WHEN b THEN 1 END AND case - 1 IN (case) AND if = if(if, 1, 2)"
    names = columns_of(query)
    assert names.count("case") == 3 and names.count("if") == 2


@pytest.mark.parametrize("word", ["cross", "describe", "fetch", "for", "on", "using"])
def test_a_word_beside_a_predicate_or_a_clause_is_a_name(word):
    for query, count in (
        (f"SELECT f(a) FILTER(WHERE {word} BETWEEN 0 AND {word}), {word} NOT BETWEEN {word} AND 1 FROM t", 5),
        (f"SELECT {word} LIKE 'x', a NOT LIKE {word}, {word} NOT IN (1), {word} RLIKE 'a' FROM t", 5),
        (f"SELECT CASE {word} WHEN {word} THEN {word} ELSE {word} END FROM t LIMIT 1", 4),
        (f"SELECT f(a) OVER (ORDER BY {word} ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t", 2),
        (f"SELECT {word} EXCEPT SELECT {word} INTERSECT SELECT {word} LIMIT 3", 3),
    ):
        names = [each.name for each in Text(query, None, {}).tree.find_all(exp.Column)]
        assert [name for name in names if name != "a"] == [word] * (count - names.count("a"))


@pytest.mark.parametrize("word", WORDS)
def test_a_word_of_a_product_or_with_an_index_is_a_name(word):
    query = f"SELECT 2 * {word}, f(a * {word}), {word} * 2, f({word} * (a)), f({word}[0]), a[{word}], ~{word} FROM t"
    tree = Text(query, None, {}).tree
    assert [each.name for each in tree.find_all(exp.Column) if each.name != "a"] == [word] * 7
    assert not list(tree.find_all(exp.Star)) and written(tree) == query


@pytest.mark.parametrize("query", ["SELECT values + 1, values - INTERVAL 1 DAY FROM t ORDER BY 1, values - 1, -values"])
def test_values_before_a_sign_is_a_name(query):
    tree = Text(query, None, {}).tree
    assert len(list(tree.find_all(exp.Column))) == 4 and written(tree) == query


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * EXCEPT (a) FROM t WHERE b LIKE ALL ('x') AND c NOT LIKE ANY ('y')",
        "SELECT f(a) OVER (ORDER BY a ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) FROM t",
        "SELECT a, (VALUES - 1) FROM VALUES -1, 2", "SELECT ALL *, b FROM t", "SELECT a.*, count(ALL *), b.* FROM t",
        "SELECT ALL a FROM t GROUP BY ALL ORDER BY ALL LIMIT ALL", "SELECT count(DISTINCT a), (SELECT 1) FROM t",
        "SELECT a FROM t GROUP BY a WITH ROLLUP", "SELECT CASE WHEN a THEN -1 END FROM t JOIN u ON -1 = a",
        "SELECT CAST(a AS DATE), a::INT, CASE WHEN NOT a THEN 1 ELSE 2 END FROM t",
        "SELECT a FROM VALUES (1) AS t(a) UNION ALL SELECT DISTINCT b FROM u", "SELECT b NOT LIKE ALL ('x') FROM t",
        "SELECT x FROM t CROSS JOIN u LEFT JOIN LATERAL (SELECT 1) AS v ON TRUE", "SELECT NULL, TRUE, DEFAULT FROM t",
        "SELECT f(OFFSET => 1, SIZE => INTERVAL '1' DAY) FROM t",
        "SELECT a FROM t WHERE a !> 3 AND a !< 2 AND a >= ALL (1)",
    ],
)  # fmt: skip
def test_a_word_of_a_clause_stays_one(query):
    tree = Text(query, None, {}).tree
    words = {
        "all",
        "case",
        "distinct",
        "rollup",
        "when",
        "not",
        "values",
        "like",
        "join",
        "lateral",
        "null",
        "true",
        "limit",
    }
    assert not words & {each.name.lower() for each in tree.find_all(exp.Column)}
    assert written(tree) == query


@pytest.mark.parametrize("word", ["ilike", "like", "regexp", "rlike"])
def test_a_predicate_before_a_bracket_is_a_function_where_an_operand_begins(word):
    query = (
        f"SELECT {word}(a, 'x'), f({word}('b', a)), a {word} ('x'), a NOT {word} ('x')"
        f" FROM t WHERE NOT {word}(a, 'x') AND {word}(a, 'y')"
    )
    tree = Text(query, None, {}).tree
    assert [each.name for each in tree.find_all(exp.Anonymous)].count(word) == 4
    assert {each.name for each in tree.find_all(exp.Column)} == {"a"}
    assert len(list(tree.find_all(exp.Like, exp.ILike, exp.RegexpLike))) == 2 and written(tree) == query


def test_a_word_after_a_quantifier_is_a_name():
    for quantifier, word in (("DISTINCT", "limit"), ("DISTINCT", "end"), ("ALL", "rows")):
        tree = Text(f"SELECT {quantifier} {word} FROM t", None, {}).tree
        assert [each.name for each in tree.find_all(exp.Column)] == [word]


def test_a_hexadecimal_text_may_have_a_space_before_it():
    tree = Text("SELECT f(X '1F', x) FROM t WHERE x = 'a' AND t.x LIKE 'b'", None, {}).tree
    assert [each.name for each in tree.find_all(exp.HexString)] == ["1F"]
    assert [each.name for each in tree.find_all(exp.Column)].count("x") == 3


@pytest.mark.parametrize("rest", ["MODELS", "TABLES LIKE 'a''b'"])
def test_the_rest_of_a_command_is_kept(rest):
    assert [token.text for token in Text(f"SHOW {rest}", None, {}).tokens] == ["SHOW", rest]


def test_a_call_in_transform_is_refused_in_a_sentence():
    for query, column in (
        ("SELECT TRANSFORM(f(a), 2) USING 'cat' AS (x) FROM t", 8),
        ("FROM t SELECT TRANSFORM(f(a)) USING 'cat' AS (b string)", 15), ("FROM t MAP a, f(b) USING 'cat' AS (b)", 20),
        ("MAP f(a) USING 'cat' FROM t", 10), ("FROM t REDUCE a, f(b) USING 'cat' AS (b string)", 23),
    ):  # fmt: skip
        with pytest.raises(
            PlanError, match=f"line 1, column {column}: SELECT TRANSFORM, MAP and REDUCE cannot be planned"
        ):
            Text(query, None, {}).tree  # noqa: B018
    assert Text("SELECT TRANSFORM(xs, x -> f(x)) FROM t", None, {}).tree.find(exp.Lambda)
