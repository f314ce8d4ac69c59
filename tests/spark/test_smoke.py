import pytest

import udf_server as udf


@pytest.mark.connect
def test_x(remote, spark):
    seen = []

    @udf.scalar
    async def plus(x: int) -> int:
        seen.append(x)
        return x + 1

    r = remote(plus)
    assert [row[0] for row in spark.range(3).select(r.function("plus")("id")).collect()] == [1, 2, 3]
    assert sorted(seen) == [0, 1, 2]
