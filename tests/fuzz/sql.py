"""Mutated and random SQL: it must be parsed, left to Spark, or rejected by a typed error with a reason."""

import contextlib
import random
import re
import string
import time
from collections import Counter
from typing import Annotated

from sqlglot import exp

import udf_server as udf
from spark_client.base.errors import PlanError
from spark_client.functions.directory import Functions
from spark_client.sql.rows.functions import SqlFunctions, SqlSession
from spark_client.sql.rows.table_calls import described, given_table
from spark_client.sql.statement_sets import query_of, statements_of
from spark_client.sql.tables.process_functions import arguments_of
from spark_client.sql.tables.window_functions import is_window_call, read_window_call
from spark_client.sql.text.parsing import Text
from spark_client.sql.text.settings import ParserSettings
from spark_client.sql.text.writers import canonical, written
from tests.spark_client.executor.aggregate.world import Total
from udf_server import ArgumentTrait
from udf_server.aggregate.declaration import declare_aggregate
from udf_server.process.declaration import declare_process

__all__ = ["SqlFuzzer"]

HANG_SECONDS = 10.0
TEXTS = r"""
SELECT k, total(v) FILTER (WHERE v > 1.5D) AS a FROM t WHERE f(k) > 1 AND v IS NOT NULL
GROUP BY ROLLUP (k) HAVING a > 2

WITH x(a) AS (SELECT f(k) FROM db.t AS u)
SELECT * EXCEPT (a), `total@1`(DISTINCT a) OVER (PARTITION BY b) FROM x, LATERAL g(a)

SELECT window_start FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' MINUTES))
GROUP BY window_start, window_end

SELECT * FROM SESSION(DATA => TABLE (SELECT * FROM t) PARTITION BY k, TIMECOL => DESCRIPTOR(ts),
GAP => INTERVAL 1 day 2 hours) w

SELECT * FROM counted(r => TABLE t PARTITION BY (k, j) ORDER BY ts DESC, on_time => DESCRIPTOR(ts),
limit => DEFAULT, uid => 'a')

EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT * FROM counted(TABLE t, 1); INSERT INTO b TABLE c; END;

INSERT OVERWRITE TABLE t PARTITION (p) SELECT CASE a WHEN 'it''s' THEN r'\d' ELSE X'1F' END FROM {frame}
LIMIT :n -- end

CREATE OR REPLACE TEMP VIEW v AS SELECT transform(xs, y -> y + 1)[0].a, m['k'] FROM t
PIVOT (sum(v) FOR j IN (0, 1)) /* x */

SELECT substring(a FROM 2 FOR 3), position('a' IN b), trim(BOTH 'x' FROM c), CAST(d AS DECIMAL(3, 1)),
DATE '2024-01-01'
""".strip().split("\n\n")
WORDS = r"""
SELECT FROM WHERE GROUP BY ORDER TABLE TUMBLE DESCRIPTOR INTERVAL ( ) ( ) , ; . => -> :: * ' " ` { } [ ] /* */ -- |>
counted total f OVER PARTITION INSERT INTO SET BEGIN END NOT IN AND 1 1L 1.5BD '' NULL CASE WHEN AS
values all on for lock describe EXPLAIN DESCRIBE QUERY TRANSFORM USING DIRECTORY WITH
${a} !> r'' "" || UNION INTERSECT JOIN \ é 𝄞
"""


class _NoCatalog:
    """The catalog of a session that has only remote functions."""

    def functionExists(self, name):
        return False


class _NoSession:
    catalog = _NoCatalog()


class Counted(udf.ProcessTableFunction):
    returns = "n int"

    def eval(self, r: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE]):
        yield 1


class SqlFuzzer:
    """`run(tries)` parses this many texts. `problems` has errors other than PlanError, and texts that took too long."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.ends = Counter()
        """The outcomes of texts: "read", or the error."""
        self.problems = []

        @udf.scalar(name="f")
        def f(x: int) -> int:
            return x

        functions = [f.spec, declare_aggregate(Total).spec, declare_process(Counted).spec]
        self.functions = SqlFunctions(SqlSession(_NoSession(), Functions(functions), self._no_call, self._no_call))

    def _no_call(self, *_, **__):
        raise AssertionError("the text is only read")

    def run(self, tries):
        for number in range(tries):
            text = self._text()
            began = time.monotonic()
            try:
                self._read(text)
                self.ends["read"] += 1
            except PlanError as error:
                self.ends["PlanError"] += 1
                if not str(error):
                    self.problems.append(f"try {number}: no message: {text!r}")
                if re.search("sqlglot|TokenType|<class|Required keyword", str(error).replace(text, "")):
                    self.problems.append(f"try {number}: the parser's words: {error}: {text!r}")
            except BaseException as error:
                self.problems.append(f"try {number}: {error!r:.200}: {text!r:.300}")
            if time.monotonic() - began > HANG_SECONDS:
                self.problems.append(f"try {number}: takes {time.monotonic() - began:.0f} s: {text!r:.300}")

    def _read(self, sql):
        reading = ParserSettings(*(self.random.random() < 0.1 for _ in range(4)))
        text = Text(sql, None, {"frame": 1} if self.random.random() < 0.1 else {}, settings=reading)
        query_of(text)
        for statement in statements_of(text) or [text]:
            for name in statement.called:
                self.functions.kind(name)
            tree = statement.tree
            # Generated SQL must be readable, and must be generated again unchanged.
            spelled = canonical(tree)
            if reading != ParserSettings():
                continue  # it is written for a session with the defaults
            assert canonical(Text(spelled, None, {}).tree) == spelled, spelled
            for call in tree.find_all(exp.Anonymous):
                if is_window_call(call):
                    read_window_call(call)
                for value in arguments_of(call).values():
                    given_table(value), described(value)
            self._change(tree)

    def _change(self, tree):
        """Change a column: what keeps the text of the user means what it meant."""
        columns = list(tree.find_all(exp.Column))
        if columns:
            self.random.choice(columns).replace(exp.column("z"))
            kept, spelled = written(tree), canonical(tree)
            with contextlib.suppress(PlanError):
                again = canonical(Text(spelled, None, {}).tree)
                try:
                    same = canonical(Text(kept, None, {}).tree)
                except PlanError as error:
                    raise AssertionError(f"{kept!r} is not understood: {error}") from None
                assert same == again, kept

    def _text(self):
        choice = self.random.random()
        if choice < 0.05:
            return "".join(self.random.choices(string.printable, k=self.random.randrange(80)))
        if choice < 0.1:
            return " ".join(self.random.choices(WORDS.split(), k=self.random.randrange(40)))
        if choice < 0.11:
            opening = self.random.choice(["(", "f(", "(SELECT ", "CASE WHEN ", "NOT ", "- ", "a[", "'", "/*"])
            return "SELECT " + opening * self.random.choice([10, 300, 3000])
        parts = self.random.choice(TEXTS).split()
        for _ in range(self.random.randrange(4)):
            place = self.random.randrange(len(parts))
            match self.random.randrange(6):
                case 0:
                    del parts[place : place + self.random.randrange(1, 4)]
                case 1:
                    parts.insert(place, self.random.choice(WORDS.split()))
                case 2:
                    parts[place] = parts[place][: self.random.randrange(len(parts[place]) + 1)]
                case 3:
                    other = self.random.choice(TEXTS).split()
                    parts[place:] = other[self.random.randrange(len(other)) :]
                case 4:
                    parts.insert(place, parts[self.random.randrange(len(parts))])
                case 5:
                    parts[place] += self.random.choice(string.printable)
            parts = parts or [""]
        return self.random.choice([" ", "\n", " "]).join(parts)
