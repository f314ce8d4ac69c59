"""The base of stores of tests that are asked for outcomes only."""

from udf_server.base.key_value_store import Store

__all__ = ["OutcomesOnly"]


class OutcomesOnly(Store):
    """A store without statistics and without entries of functions' own."""

    shared = True

    async def stats(self):
        raise NotImplementedError

    async def clear(self, function=None):
        raise NotImplementedError

    def export(self):
        raise NotImplementedError

    async def own(self, function, keys):
        raise NotImplementedError

    async def compare_and_set(self, function, changes, seconds):
        raise NotImplementedError
