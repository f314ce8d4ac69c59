"""Of a query with one remote call, every part that does not have to change reaches Spark as the user wrote it."""

import re

import pytest
from pyspark.sql import functions as F

import udf_server as udf
from tests.spark.sql.groups.test_aggregates import MySum
from udf_server.aggregate.declaration import declare_aggregate

ROWS = [("a", 1, "x"), ("a", 2, "é"), ("b", 3, None)]


@udf.scalar
def plus_ten(x: int) -> int:
    return x + 10


@udf.scalar(rows=True, returns="n bigint, double bigint")
def up_to(n: int):
    return [{"n": each, "double": 2 * each} for each in range(n)]


@udf.scalar(returns="struct<label: string>")
def labels(n: int):
    return {"label": f"label {n}"}


@pytest.fixture
def functions(spark, remote):
    frame = spark.createDataFrame(ROWS, "k string, v bigint, s string")
    frame.selectExpr("k", "v", "s", "timestamp_seconds(v) AS at").createOrReplaceTempView("three")
    spark.createDataFrame([("a", 1), ("b", 2)], "k string, w bigint").createOrReplaceTempView("two")
    spark.sql("DROP TABLE IF EXISTS written_out")
    yield remote(declare_aggregate(MySum), plus_ten, up_to, labels)
    spark.sql("DROP TABLE IF EXISTS written_out")
    for view in ("three", "two"):
        spark.catalog.dropTempView(view)


@pytest.fixture
def texts(spark, monkeypatch):
    """The texts that Spark receives."""
    found = []
    run, expr = type(spark).sql, F.expr

    def sql(self, text, *args, **options):
        found.append(text)
        return run(self, text, *args, **options)

    def expression(text):
        found.append(text)
        return expr(text)

    monkeypatch.setattr(type(spark), "sql", sql)
    monkeypatch.setattr(F, "expr", expression)
    return found


# What is between ⟦ and ⟧ does not have to change.
QUERIES = {
    "keys, arguments, conditions and tables of aggregates": """
        select ⟦upper( k )||''  ⟧as u, my_sum(⟦v /* é ' */ +1⟧) AS s, max(⟦concat( s,'it''s' "so" )⟧)
        ⟦from  three /* , */ AS t⟧ ⟦join  two using( k )⟧
        ⟦where t.v!=7 AND not s<=>'none'⟧ -- kept
        group by ⟦upper( k )||''⟧ having my_sum(⟦v /* é ' */ +1⟧)>0 ORDER BY s""",
    "a condition of FILTER, and DISTINCT": """
        SELECT my_sum(v % 5) filter (where ⟦s  like 'x%'⟧), count(distinct ⟦v  DIV 2⟧) FROM ⟦three  t⟧""",
    "subqueries and common table expressions without a remote call": r"""
        with ⟦c as ( select *,  v::double  AS d -- one
          from three  where s rlike '\\w'  or s=="é" )⟧
        select my_sum(⟦v⟧) from ⟦( select /*+ BROADCAST(two) */  c.* from c  join two  on c.k==two.k )  as  x⟧
        where ⟦v in( select w  from two )⟧""",
    "the other query of a UNION": """
        select my_sum(v)  from three union  all ⟦select  count( * )  FROM two⟧""",
    "arguments, partitions and orders of windows": """
        select ⟦k  ⟧, my_sum(⟦v*2⟧) over(partition by ⟦upper( k )⟧ order by ⟦v  -  1⟧), rank()  over ( order  by v )
        from ⟦three /* t */ as  t⟧ where ⟦v  >  0⟧""",
    "windows of time": """
        select window_start, my_sum(⟦v  +  length( 'a' "b" )⟧) from TABLE(TUMBLE(TABLE three, DESCRIPTOR(at),
        INTERVAL '10' SECONDS)) ⟦where  s is  not null⟧ group by window_start, window_end""",
    "rows of LATERAL": """
        select ⟦t.k||'-'⟧  as k, r.double, ⟦case when v=1 then 'it''s' end⟧ as c
        from ⟦three /* t */ t⟧, lateral up_to(⟦v  +  1⟧) as r ⟦where  v<3⟧""",
    "lookup joins": """
        select ⟦t.k||"-"⟧ as k, c.label from ⟦three  t⟧ join labels for system_time as of t.at as c
        on c.n = ⟦t.v  %  2⟧ ⟦where t.v  >  0⟧""",
    "scalar calls in several clauses": """
        select plus_ten(⟦v  +  1⟧) as p, ⟦s  ||  'x'⟧ as q from ⟦three  t⟧
        where plus_ten(⟦v  +  1⟧)>11 and ⟦k!='none'⟧ order by ⟦s  desc  nulls last⟧""",
    "CREATE TABLE AS": """
        ⟦create  table written_out using  org.apache.spark.sql.parquet  tblproperties ( 'a' 'b' )  as⟧
        select ⟦k⟧, my_sum(⟦v  +  1⟧)  as s from ⟦three⟧ group  by ⟦k⟧""",
}


def parts_of(marked):
    return [part.strip() for part in re.findall("⟦(.*?)⟧", marked, flags=re.DOTALL)]


@pytest.mark.parametrize("marked", QUERIES.values(), ids=QUERIES)
def test_what_does_not_change_reaches_spark_byte_for_byte(functions, texts, marked):
    sql = re.sub("[⟦⟧]", "", marked)
    functions.sql(sql).collect()
    seen = "\n".join(texts)
    assert sql not in texts and len(parts_of(marked)) > 0
    assert [part for part in parts_of(marked) if part not in seen] == []
