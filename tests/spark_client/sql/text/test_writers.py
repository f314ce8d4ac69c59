"""What is unchanged is written as the user wrote it, and what is compared has one spelling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlglot import exp

from spark_client.sql.text.parsing import Text
from spark_client.sql.text.writers import canonical, written
from tests.properties import examples
from tests.spark_client.sql.text.test_spans import spaced

SQL = """WITH  c(a) AS ( SELECT 1 -- one
)
SELECT /*+ BROADCAST(u) */ DISTINCT  a+b  sum, f( a,b ) /* é */, 'it''s'  'so', x::int,
  CASE WHEN a!=1 THEN "b" END
from t TABLESAMPLE (5 rows)  u   left  join (select  *  from v  where k==1) w using(a), lateral view_of(1)
where a is  not null and not b in(1,2)
group  by a,  rollup(b,c) having  count( * )>1
order by a  nulls  last limit 10"""


def tree_of(sql=SQL, **fields):
    return Text(sql, None, fields).tree


def test_a_tree_that_nothing_has_changed_is_written_as_its_text():
    assert written(tree_of()) == written(tree_of().copy()) == SQL
    assert written(tree_of(" \n SELECT 1 -- one\n")) == "SELECT 1"


def renamed(tree, name="u"):
    for column in list(tree.find_all(exp.Column)):
        if column.name == name:
            column.replace(exp.column("z"))
    return tree


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT u,a+1  AS b , f(a,b)  c FROM  t  x", "SELECT z, a+1  AS b, f(a,b)  c FROM  t  x"),
        ("SELECT f( u,  a*2 , 'x' )", "SELECT f(z, a*2, 'x')"),
        ("SELECT a*2/b + u", "SELECT a*2/b + z"),
        ("SELECT a  +  b  +  u + c", "SELECT a + b + z + c"),
        (r"SELECT u LIKE '\d' ESCAPE '\\'", r"SELECT z LIKE '\d' ESCAPE '\\'"),
        ("SELECT u WHERE a!=1 AND (b==2)", "SELECT z WHERE a!=1 AND (b==2)"),
        ("select u from t  a , v -- two\n join w on a.x==w.x", "SELECT z from t  a , v join w on a.x==w.x"),
        ("select (select  *  from t) , u", "SELECT (select  *  from t), z"),
        ("select u union  all select  a  from t order  by 1", "SELECT z union  all select  a  from t order  by 1"),
        ("select  a  from t union select u", "select  a  from t union SELECT z"),
        ("select * from ( select u from t )  as  x ( a )", "SELECT * from ( SELECT z from t )  as  x ( a )"),
        ("insert into  t  partition (p = 1)  (a)  select u", "insert into  t  partition (p = 1)  (a)  SELECT z"),
        ("insert  overwrite t  select u", "insert  overwrite t  SELECT z"),
        ("create  table t using  csv  as select u", "create  table t using  csv  as SELECT z"),
        ("create table t tblproperties (a  1, 'b'  'c') as select u",
         "create table t tblproperties (a  1, 'b'  'c') as SELECT z"),
        ("with c as (select  1) , d  as  (select u) select  2", "WITH c as (select  1), d  as  (SELECT z) SELECT 2"),
        ("select a::timestamp(3),b::int, u", "SELECT CAST(a AS TIMESTAMP), b::int, z"),
        ("select a::int + u, 1  as b", "SELECT a::int + z, 1  as b"),
    ],
)  # fmt: skip
def test_what_surrounds_a_change_keeps_its_text(sql, expected):
    assert written(renamed(tree_of(sql))) == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree.expressions[0].set("this", "K"),
        lambda tree: tree.expressions[0].this.args.update(this="K"),
        lambda tree: tree.expressions[0].this.args.update(quoted=True),
        lambda tree: tree.args.update(distinct=exp.Distinct()),
        lambda tree: tree.expressions.pop(),
        lambda tree: tree.expressions.reverse(),
        lambda tree: tree.args.pop("where"),
    ],
)
def test_any_change_is_seen_however_it_was_made(change):
    tree = tree_of(before := "SELECT k,  v FROM t WHERE k  >  2")
    change(tree)
    assert written(tree) == canonical(tree).replace("k > 2", "k  >  2") != before


@given(spaced(), st.data())
@examples(60, deadline=None)
def test_a_changed_tree_is_the_same_by_both_writers(sql, data):
    tree = tree_of(sql)
    names = [node for node in tree.walk() if isinstance(node, exp.Column | exp.Table)]
    if names:
        name = data.draw(st.sampled_from(names))
        name.replace(exp.column("z") if isinstance(name, exp.Column) else exp.to_table("z"))
    assert canonical(tree_of(written(tree))) == canonical(tree_of(canonical(tree)))


def test_a_change_that_was_undone_is_none():
    tree = tree_of("SELECT k,  v FROM t")
    tree.expressions[0].replace(exp.column("k"))
    assert written(tree) == "SELECT k,  v FROM t"


def test_a_part_keeps_its_text_in_another_tree():
    tree = tree_of("SELECT a  ||  b, f(x)  FROM t /* t */ AS u")
    select = exp.Select(expressions=[exp.alias_(tree.expressions[0].copy(), "z", quoted=True)])
    select.set("from_", tree.args["from_"].copy())
    assert written(select) == "SELECT a  ||  b AS `z` FROM t /* t */ AS u"


def test_flinks_spelling_is_written_as_sparks():
    sql = "SELECT cast(a  AS timestamp(3)), cast(b  AS timestamp), cast(c AS time(3)) FROM STREAM  t, u  v"
    expected = "SELECT CAST(a AS TIMESTAMP), cast(b  AS timestamp), cast(c AS time(3)) FROM STREAM t , u  v"
    assert written(tree_of(sql)) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("part", "operator"), [("a  *  1", "+"), ("a  =  1", "AND"), ("f( a )", "||"), ("(a)", "OR")])
def test_a_chain_of_operators_may_be_long(part, operator):
    chain = f" {operator} ".join([part] * 1_000)
    assert written(renamed(tree_of(f"SELECT u,  {chain}"))) == f"SELECT z, {chain}"
    assert written(renamed(tree_of(f"SELECT {chain} {operator} u"))).endswith(f"{part} {operator} z")


def test_fields_in_braces_are_part_of_the_text():
    tree = tree_of("SELECT {n} +  1,  a FROM {t}  x", n=1, t="a table")
    assert written(tree) == Text("SELECT {n} +  1,  a FROM {t}  x", None, {"n": 1, "t": 0}).readable()


def test_equal_calls_have_one_canonical_text():
    calls = tree_of("SELECT f(a,b), f( a /* first */, b ), f(a, b+0)").expressions
    assert [canonical(call) for call in calls] == ["f(a, b)", "f(a, b)", "f(a, b + 0)"]
    assert [written(call) for call in calls] == ["f(a,b)", "f( a /* first */, b )", "f(a, b+0)"]
