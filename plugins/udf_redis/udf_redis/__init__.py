"""The plugin `redis`: lookups at one Redis server."""

import udf_server as udf
from udf_redis.functions import redis_get, redis_hash

__all__ = ["redis_get", "redis_hash", "udf_functions"]


@udf.hookimpl
def udf_functions() -> list[udf.Function]:
    """The functions of this plugin."""
    return [redis_get, redis_hash]
