"""Cases of `remote.sql`."""

from tests.differential.cases import Case, draw_settings, draw_tables, mentioned
from tests.differential.choices import Choices
from tests.differential.sources import statement

__all__ = ["draw_query"]


def draw_query(draw: Choices) -> Case:
    """A SELECT statement, with remote functions and with Spark's."""
    settings = draw_settings(draw)
    tables = draw_tables(draw, settings)
    tags = {"sql"}
    query = statement(draw, tables, settings, tags)
    ours, sparks = (
        f"{session}.sql({text!r})" for session, text in (("remote", query.text.ours), ("spark", query.text.sparks))
    )
    return Case(settings, mentioned(tables, sparks), ours, sparks, tags, query.ordered, query.names)
