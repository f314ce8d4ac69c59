"""Queries in the style of the decision support benchmark TPC-DS over small versions of its tables.

The dialect changes neither Spark's plan of a query nor its rows.
"""

import pytest

from tests.properties import few_quickly
from tests.spark.rewritten import plan_of, rewritten

SALES = "id % 7 + 1 AS {0}_item_sk, id % 40 + 1 AS {0}_sold_date_sk, id % 5 + 1 AS {0}_customer_sk, id AS {0}_order"
MONEY = (
    "cast(id % 9 + 1 AS int) AS {0}_quantity, cast(id * 7 % 90 + 0.5 AS decimal(7, 2)) AS {0}_sales_price, "
    "cast(if(id % 11 = 0, null, id * 3 % 50 - 10) AS decimal(7, 2)) AS {0}_net_profit"
)
TABLES = {
    "store_sales": (60, f"{SALES}, {MONEY}, id % 3 + 1 AS ss_store_sk, id % 4 + 1 AS ss_hdemo_sk".format("ss")),
    "catalog_sales": (40, f"{SALES}, {MONEY}, id % 40 + 3 AS cs_ship_date_sk".format("cs")),
    "web_sales": (30, f"{SALES}, {MONEY}".format("ws")),
    "store_returns": (
        20, "id * 3 % 60 AS sr_order, id * 3 % 7 + 1 AS sr_item_sk, id % 40 + 2 AS sr_returned_date_sk, "
        "id % 5 + 1 AS sr_customer_sk, id % 3 + 1 AS sr_store_sk, cast(id AS decimal(7, 2)) AS sr_return_amt"
    ),
    "date_dim": (
        45, "id AS d_date_sk, date_add(DATE '1999-12-10', cast(id AS int)) AS d_date, "
        "year(date_add(DATE '1999-12-10', cast(id AS int))) AS d_year, id div 7 AS d_week_seq, "
        "month(date_add(DATE '1999-12-10', cast(id AS int))) AS d_moy, "
        "date_format(date_add(DATE '1999-12-10', cast(id AS int)), 'EEEE') AS d_day_name"
    ),
    "item": (
        8, "id AS i_item_sk, concat('AAAA', id) AS i_item_id, concat_ws(' ', 'brand', id % 3) AS i_brand, "
        "if(id % 2 = 0, 'Books', 'Music') AS i_category, concat('class', id % 4) AS i_class, "
        "cast(id * 1.25 AS decimal(7, 2)) AS i_current_price, concat('Item ', id) AS i_product_name"
    ),
    "store": (4, "id AS s_store_sk, concat('Store ', id) AS s_store_name, if(id = 2, 'TN', 'OH') AS s_state"),
    "customer": (
        6, "id AS c_customer_sk, concat('C', id) AS c_customer_id, id % 4 + 1 AS c_addr_sk, "
        "if(id = 3, null, 'Ann') AS c_first_name, concat('Lee', id) AS c_last_name, 1950 + id * 10 AS c_birth_year"
    ),
    "customer_address": (5, "id AS ca_address_sk, if(id < 3, 'TN', 'GA') ca_state, concat('3', id, '127') AS ca_zip"),
    "household": (5, "id AS hd_demo_sk, cast(id AS int) AS hd_dep_count, if(id > 2, '>10000', 'Unknown') AS hd_buy"),
}  # fmt: skip

QUERIES = {
    "a common table expression used twice, and a correlated average": """
        WITH returned AS (SELECT sr_customer_sk AS who, sr_store_sk AS shop, sum(sr_return_amt) AS total
                          FROM store_returns, date_dim WHERE sr_returned_date_sk = d_date_sk AND d_year >= 1999
                          GROUP BY sr_customer_sk, sr_store_sk)
        SELECT c_customer_id FROM returned r1, store, customer
        WHERE r1.total > (SELECT avg(total) * 1.2 FROM returned r2 WHERE r1.shop = r2.shop)
          AND s_store_sk = r1.shop AND s_state = 'TN' AND r1.who = c_customer_sk
        ORDER BY c_customer_id LIMIT 100""",
    "weeks beside the weeks before, with CASE pivots": """
        WITH w AS (SELECT d_week_seq,
                     sum(CASE WHEN (d_day_name = 'Sunday') THEN ws_sales_price ELSE NULL END) sun,
                     sum(CASE WHEN (d_day_name = 'Monday') THEN ws_sales_price ELSE NULL END) AS mon
                   FROM (SELECT ws_sold_date_sk, ws_sales_price FROM web_sales
                         UNION ALL SELECT cs_sold_date_sk, cs_sales_price FROM catalog_sales) x, date_dim
                   WHERE d_date_sk = ws_sold_date_sk GROUP BY d_week_seq)
        SELECT y.d_week_seq, round(y.sun / z.sun, 2) r, round(y.mon / z.mon, 2)
        FROM w y, w AS z WHERE y.d_week_seq = z.d_week_seq - 1 ORDER BY 1, 2""",
    "EXISTS, NOT EXISTS and OR of them": """
        SELECT ca_state, count(*) AS cnt, avg(c_birth_year), stddev_samp(c_birth_year)
        FROM customer c, customer_address ca
        WHERE c.c_addr_sk = ca.ca_address_sk
          AND EXISTS (SELECT * FROM store_sales WHERE c.c_customer_sk = ss_customer_sk AND ss_quantity > 3)
          AND (NOT EXISTS (SELECT 1 FROM web_sales WHERE c.c_customer_sk = ws_customer_sk AND ws_quantity > 8)
               OR EXISTS (SELECT 1 FROM catalog_sales WHERE c.c_customer_sk = cs_customer_sk))
        GROUP BY ca_state HAVING count(*) >= 1 ORDER BY ca_state""",
    "ROLLUP with grouping and a rank within its levels": """
        SELECT sum(ss_net_profit) AS total, i_category, i_class,
               grouping(i_category) + grouping(i_class) AS lochierarchy,
               rank() OVER (PARTITION BY grouping(i_category) + grouping(i_class),
                            CASE WHEN grouping(i_class) = 0 THEN i_category END
                            ORDER BY sum(ss_net_profit) DESC) AS rank_within_parent
        FROM store_sales JOIN item ON i_item_sk = ss_item_sk GROUP BY ROLLUP (i_category, i_class)
        ORDER BY lochierarchy DESC, CASE WHEN lochierarchy = 0 THEN i_category END, rank_within_parent, i_class""",
    "CUBE and GROUPING SETS": """
        SELECT i_brand, s_state, grouping_id(), count(1) FROM store_sales, item, store
        WHERE ss_item_sk = i_item_sk AND ss_store_sk = s_store_sk
        GROUP BY i_brand, s_state GROUPING SETS ((i_brand, s_state), (s_state), ())
        UNION ALL SELECT i_class, i_category, 9, count(1) FROM item GROUP BY CUBE (i_class, i_category)
        ORDER BY 1 NULLS LAST, 2 NULLS FIRST, 3, 4""",
    "windows with frames, over a join of windows": """
        WITH v AS (SELECT i_brand, d_year, d_moy, sum(ss_sales_price) AS sales,
                     avg(sum(ss_sales_price)) OVER (PARTITION BY i_brand, d_year) AS avg_monthly,
                     rank() OVER (PARTITION BY i_brand ORDER BY d_year, d_moy) AS rn
                   FROM item, store_sales, date_dim WHERE ss_item_sk = i_item_sk AND ss_sold_date_sk = d_date_sk
                     AND (d_year = 2000 OR (d_year = 2000 - 1 AND d_moy = 12)) GROUP BY i_brand, d_year, d_moy)
        SELECT v.*, lag.sales AS psum, lead.sales nsum FROM v, v lag, v lead
        WHERE v.i_brand = lag.i_brand AND v.i_brand = lead.i_brand AND v.rn = lag.rn + 1 AND v.rn = lead.rn - 1
          AND CASE WHEN v.avg_monthly > 0 THEN abs(v.sales - v.avg_monthly) / v.avg_monthly ELSE null END > 0.01
        ORDER BY v.sales - v.avg_monthly, 3""",
    "running sums, full outer, by ROWS and by RANGE": """
        SELECT coalesce(web.d, store.d) AS d, max(web.total) OVER (ORDER BY coalesce(web.d, store.d)
                 ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS w, store.total,
               count(*) OVER (ORDER BY coalesce(web.d, store.d)
                 RANGE BETWEEN INTERVAL 3 DAYS PRECEDING AND CURRENT ROW) AS n
        FROM (SELECT d_date AS d, sum(ws_sales_price) AS total FROM web_sales JOIN date_dim
              ON ws_sold_date_sk = d_date_sk GROUP BY d_date) web
        FULL OUTER JOIN (SELECT d_date AS d, sum(ss_sales_price) AS total FROM store_sales, date_dim
              WHERE ss_sold_date_sk = d_date_sk AND d_moy BETWEEN 1 AND 1 GROUP BY d_date) store ON web.d = store.d
        ORDER BY 1""",
    "set operations": """
        SELECT count(*) FROM (
          (SELECT DISTINCT c_last_name, c_first_name FROM store_sales, customer WHERE ss_customer_sk = c_customer_sk)
          EXCEPT (SELECT DISTINCT c_last_name, c_first_name FROM catalog_sales, customer
                  WHERE cs_customer_sk = c_customer_sk AND cs_quantity > 8)
          INTERSECT SELECT DISTINCT c_last_name, c_first_name FROM customer
          MINUS (SELECT c_last_name, c_first_name FROM customer WHERE c_birth_year IS NULL)) cool_cust""",
    "INTERSECT in a subquery with IN, HAVING with a scalar subquery": """
        WITH cross_items AS (SELECT i_item_sk ss_item_sk FROM item, (
               SELECT i_brand AS b FROM store_sales, item iss WHERE ss_item_sk = iss.i_item_sk
               INTERSECT SELECT i_brand FROM web_sales, item iws WHERE ws_item_sk = iws.i_item_sk) x WHERE i_brand = b),
             avg_sales AS (SELECT avg(q * p) AS average FROM (SELECT ss_quantity q, ss_sales_price p FROM store_sales
                           UNION ALL SELECT cs_quantity, cs_sales_price FROM catalog_sales) y)
        SELECT 'store' channel, i_brand, sum(ss_quantity * ss_sales_price) sales, count(*) AS number_sales
        FROM store_sales, item WHERE ss_item_sk IN (SELECT ss_item_sk FROM cross_items) AND ss_item_sk = i_item_sk
        GROUP BY i_brand HAVING sum(ss_quantity * ss_sales_price) > (SELECT average FROM avg_sales)
        ORDER BY channel, i_brand""",
    "dates with intervals, BETWEEN and casts": """
        SELECT i_item_id, i_current_price, sum(cs_sales_price) AS rev,
               sum(cs_sales_price) * 100 / sum(sum(cs_sales_price)) OVER (PARTITION BY i_class) AS ratio
        FROM catalog_sales, item, date_dim WHERE cs_item_sk = i_item_sk AND i_category IN ('Books', 'Music')
          AND cs_sold_date_sk = d_date_sk
          AND d_date BETWEEN cast('1999-12-22' AS date) AND (cast('1999-12-22' AS DATE) + INTERVAL 30 days)
        GROUP BY i_item_id, i_class, i_current_price ORDER BY i_item_id, ratio LIMIT 100""",
    "quoted names, and columns that are words": """
        SELECT substr(s_store_name, 1, 20), sum(CASE WHEN d - s <= 30 THEN 1 ELSE 0 END) AS `30 days `,
               sum(CASE WHEN (d - s > 30) AND (d - s <= 60) THEN 1 ELSE 0 END) AS `31 - 60 days `
        FROM (SELECT cs_ship_date_sk AS d, cs_sold_date_sk AS s, s_store_name FROM catalog_sales, store) AS `order`
        GROUP BY substr(s_store_name, 1, 20) ORDER BY substr(s_store_name, 1, 20) LIMIT 100""",
    "scalar subqueries in CASE": """
        SELECT CASE WHEN (SELECT count(*) FROM store_sales WHERE ss_quantity BETWEEN 1 AND 4) > 20
                    THEN (SELECT avg(ss_sales_price) FROM store_sales WHERE ss_quantity BETWEEN 1 AND 4)
                    ELSE (SELECT avg(ss_net_profit) FROM store_sales WHERE ss_quantity BETWEEN 1 AND 4) END bucket1
        FROM store WHERE s_store_sk = 1""",
    "DISTINCT aggregates side by side": """
        SELECT * FROM (SELECT avg(ss_sales_price) b1_lp, count(ss_sales_price) b1_cnt,
                              count(DISTINCT ss_sales_price) b1_cntd
                       FROM store_sales WHERE ss_quantity BETWEEN 0 AND 5 AND (ss_sales_price BETWEEN 8 AND 8 + 30)) b1
        CROSS JOIN (SELECT count(DISTINCT ss_item_sk, ss_store_sk), sum(DISTINCT ss_quantity) FROM store_sales) b2""",
    "a chain of joins with conditions in OR": """
        SELECT avg(ss_quantity), avg(ss_sales_price) x, sum(ss_net_profit)
        FROM store_sales, store, household, date_dim
        WHERE s_store_sk = ss_store_sk AND ss_sold_date_sk = d_date_sk AND d_year = 2000
          AND ((ss_hdemo_sk = hd_demo_sk AND hd_buy = '>10000' AND ss_sales_price BETWEEN 10.00 AND 60.00
                AND hd_dep_count = 3)
            OR (ss_hdemo_sk = hd_demo_sk AND hd_buy LIKE 'Unk%' AND hd_dep_count IN (1, 2)))""",
    "LEFT OUTER JOIN with what has no partner": """
        SELECT ss_customer_sk, sum(act_sales) AS sumsales FROM (
          SELECT ss_customer_sk, CASE WHEN sr_return_amt IS NOT NULL THEN ss_sales_price - sr_return_amt
                                      ELSE (ss_quantity * ss_sales_price) END AS act_sales
          FROM store_sales LEFT OUTER JOIN store_returns ON (sr_item_sk = ss_item_sk AND sr_order = ss_order)
          WHERE sr_order IS NULL OR NOT sr_return_amt > 40) t
        GROUP BY ss_customer_sk ORDER BY sumsales, ss_customer_sk""",
    "deviation of months": """
        SELECT warehouse, moy, stdev, mean, CASE mean WHEN 0 THEN NULL ELSE stdev / mean END cov
        FROM (SELECT ss_store_sk AS warehouse, d_moy AS moy, stddev_samp(ss_quantity) AS stdev, avg(ss_quantity) AS mean
              FROM store_sales, date_dim WHERE ss_sold_date_sk = d_date_sk GROUP BY ss_store_sk, d_moy) foo
        WHERE CASE mean WHEN 0 THEN 0 ELSE stdev / mean END > 0.1 ORDER BY warehouse, moy, cov""",
    "best and worst, joined by their ranks": """
        SELECT asceding.rnk, i1.i_product_name AS best, i2.i_product_name worst
        FROM (SELECT * FROM (SELECT item_sk, rank() OVER (ORDER BY rank_col ASC) rnk
                FROM (SELECT ss_item_sk item_sk, avg(ss_net_profit) rank_col FROM store_sales ss1 WHERE ss_store_sk = 2
                      GROUP BY ss_item_sk HAVING avg(ss_net_profit) > 0.9 * (SELECT avg(ss_net_profit) FROM store_sales
                        WHERE ss_store_sk = 2 AND ss_hdemo_sk IS NOT NULL GROUP BY ss_store_sk)) v1) v11
              WHERE rnk < 11) asceding,
             (SELECT ss_item_sk AS item_sk, dense_rank() OVER (ORDER BY avg(ss_net_profit) DESC NULLS LAST) rnk
              FROM store_sales GROUP BY ss_item_sk) descending, item i1, item i2
        WHERE asceding.rnk = descending.rnk AND i1.i_item_sk = asceding.item_sk AND i2.i_item_sk = descending.item_sk
        ORDER BY asceding.rnk, 2, 3""",
    "zip codes: substr, concat, IN with a subquery of INTERSECT": """
        SELECT s_store_name, concat('store', s_store_name) AS id, sum(ss_net_profit) FROM store_sales, store,
          (SELECT ca_zip FROM (SELECT substr(ca_zip, 1, 5) ca_zip FROM customer_address
                               WHERE substr(ca_zip, 1, 5) IN ('31127', '32127', '33127')
                               INTERSECT (SELECT ca_zip FROM (SELECT substring(ca_zip, 1, 5) ca_zip, count(*) cnt
                                          FROM customer_address, customer WHERE ca_address_sk = c_addr_sk
                                          GROUP BY ca_zip HAVING count(*) > 0) a1)) a2) v1
        WHERE ss_store_sk = s_store_sk AND upper(substr(s_store_name, 1, 2)) || '' <> v1.ca_zip
        GROUP BY s_store_name ORDER BY s_store_name LIMIT 100""",
    "a yearly change by self join of a union with constants": """
        WITH year_total AS (
          SELECT c_customer_id customer_id, d_year AS dyear, sum(ss_sales_price) / 2 AS year_total, 's' sale_type
          FROM customer, store_sales, date_dim WHERE c_customer_sk = ss_customer_sk AND ss_sold_date_sk = d_date_sk
          GROUP BY c_customer_id, d_year
          UNION ALL SELECT c_customer_id, d_year, sum(ws_sales_price), 'w' FROM customer, web_sales, date_dim
          WHERE c_customer_sk = ws_customer_sk AND ws_sold_date_sk = d_date_sk GROUP BY c_customer_id, d_year)
        SELECT a.customer_id, cast(b.year_total / a.year_total AS decimal(15, 4)) AS change
        FROM year_total a, year_total b WHERE a.customer_id = b.customer_id AND a.sale_type = 's' AND b.sale_type = 'w'
          AND a.year_total > 0 AND CASE WHEN a.year_total > 0 THEN b.year_total / a.year_total ELSE 0.0 END >
              CASE WHEN b.year_total > 0 THEN a.year_total / b.year_total ELSE 0.0 END
        ORDER BY a.customer_id, change""",
    "the shape of counts per household": """
        SELECT c_last_name, c_first_name, cnt FROM (
          SELECT ss_order, ss_customer_sk, count(*) cnt FROM store_sales, household WHERE ss_hdemo_sk = hd_demo_sk
            AND hd_dep_count > 0
            AND (CASE WHEN hd_dep_count > 0 THEN hd_dep_count * 1.0 / hd_dep_count ELSE NULL END) > 0.5
          GROUP BY ss_order, ss_customer_sk) dj, customer
        WHERE ss_customer_sk = c_customer_sk AND cnt BETWEEN 1 AND 5
        ORDER BY cnt DESC, c_last_name ASC NULLS FIRST, c_first_name DESC LIMIT 20 OFFSET 1""",
    "more than half of all, without a partner elsewhere": """
        SELECT count(DISTINCT ss_order) AS `order count `, sum(ss_net_profit) AS total FROM store_sales ss1
        WHERE 0.5 * ss1.ss_quantity <
              (SELECT max(cs_quantity) FROM catalog_sales cs WHERE cs.cs_item_sk = ss1.ss_item_sk)
          AND ss1.ss_order NOT IN (SELECT sr_order FROM store_returns WHERE sr_order IS NOT NULL)
          AND ss1.ss_item_sk IN (SELECT ws_item_sk FROM web_sales)""",
}


@pytest.fixture(scope="module")
def tables(spark):
    make_views(spark, TABLES)
    yield spark
    for name in TABLES:
        spark.catalog.dropTempView(name)


def make_views(spark, tables):
    for name, (rows, columns) in tables.items():
        first = 0 if name.endswith("sales") else 1
        spark.range(first, first + rows, 1, 1).selectExpr(*_split(columns)).createOrReplaceTempView(name)


def _split(columns):
    """Splits expressions at commas outside parentheses."""
    parts, depth = [""], 0
    for letter in columns:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


@pytest.mark.parametrize("name", few_quickly(8, QUERIES))
def test_a_query_of_the_benchmarks_kind_keeps_its_plan_and_its_rows(tables, name):
    mine, sparks = rewritten(tables, QUERIES[name]), tables.sql(QUERIES[name])
    assert mine.schema == sparks.schema
    assert plan_of(mine) == plan_of(sparks)


def test_the_rows_are_sparks(tables):
    """Two queries are enough: equal plans have equal rows, and neither result is empty."""
    for name in list(QUERIES)[:2]:
        mine, sparks = rewritten(tables, QUERIES[name]).collect(), tables.sql(QUERIES[name]).collect()
        assert mine == sparks and mine
