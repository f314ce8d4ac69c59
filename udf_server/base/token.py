"""Token is taken once, by whichever thread comes first."""

__all__ = ["Token"]


class Token:
    """Decides which of several threads does what may be done once. No method waits."""

    __slots__ = ("_there",)

    def __init__(self, *, there: bool = True) -> None:
        """If it is not there, nobody can take it before `put`."""
        # Python pops an element in one step.
        self._there: list[None] = [None] if there else []

    def __bool__(self) -> bool:
        """Whether it is there."""
        return bool(self._there)

    def put(self) -> None:
        """Let one thread take it. Call once."""
        self._there.append(None)

    def take(self) -> bool:
        """Take it. Returns whether the caller was the first."""
        try:
            self._there.pop()
        except IndexError:
            return False
        return True
