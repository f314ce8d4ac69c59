"""Finds Spark's own operators whose rows the watermark makes: windows that end, rows of a join that found no partner.

Nothing in the columns of a DataFrame tells, so this reads Spark's description of the analyzed plan, in which a tilde
marks operators over streams.
"""

import re

from pyspark.sql import DataFrame

from spark_client.base.analyzed_plans import analyzed_plan

__all__ = ["emits_by_watermark"]

_NODE = re.compile(r"(?P<branches>(?:[ :|]  )*(?:[:+]- )?)(?P<node>\S.*)")
_UNMATCHED = re.compile(r"~Join (LeftOuter|RightOuter|FullOuter)\b")


def emits_by_watermark(frame: DataFrame) -> bool:
    """Whether operators of Spark in the plan of a stream emit rows because the watermark advances."""
    lines = [_NODE.fullmatch(line) for line in analyzed_plan(frame)]
    nodes = [(len(found["branches"]), found["node"]) for found in lines if found is not None]
    return any(
        node.startswith("~Aggregate ") or (_UNMATCHED.match(node) and _inputs(nodes, place) == [True, True])
        for place, (_, node) in enumerate(nodes)
    )


def _inputs(nodes: list[tuple[int, str]], place: int) -> list[bool]:
    """For each input of a node, whether it is a stream."""
    depth, found = nodes[place][0], []
    for below, node in nodes[place + 1 :]:
        if below <= depth:
            break
        if below == depth + 3:
            found.append(node.startswith(("~", "StreamingRelation")))
    return found
