"""Views through which a function reads and changes its state: one value, a list or a map.

Elements of lists and entries of maps expire separately. If the state has a time-to-live, each stores when it was
written, in milliseconds of the clock of its segment.
"""

from collections.abc import Iterable, Iterator, MutableMapping, MutableSequence
from typing import Any, Generic, TypeVar

from udf_server.values.values import canonical_key

__all__ = ["ListView", "MapView", "ValueView"]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
READ_ONLY = "Broadcast state entry {!r} is read-only while processing a table with row or set semantics"


class ValueView(Generic[T]):
    """State that is one value, or none."""

    __slots__ = ("_name", "_value", "_writable", "written")

    def __init__(self, value: T | None = None, written: int | None = None, *, name: str = "", writable: bool = True):
        self._value = value
        self.written = written
        """When the value was written; None if it was written in this segment."""
        self._name = name
        self._writable = writable

    @property
    def value(self) -> T | None:
        """The value, for reading and writing; None if there is none."""
        return self._value

    @value.setter
    def value(self, value: T | None) -> None:
        _require_writable(self._writable, self._name)
        self._value = value
        self.written = None

    @property
    def is_empty(self) -> bool:
        """Whether there is no value."""
        return self._value is None

    def clear(self) -> None:
        """Remove the value."""
        self.value = None

    def __repr__(self) -> str:
        return f"ValueView({self._value!r})"


class ListView(MutableSequence[T]):
    """A list that refuses None. It has the methods of a Python list except those that sort."""

    __slots__ = ("_items", "_name", "_writable", "_written")

    def __init__(
        self, items: Iterable[T] = (), written: Iterable[int | None] | None = None, *, name: str = "",
        writable: bool = True,
    ) -> None:  # fmt: skip
        self._items = list(items)
        self._written: list[int | None] = [None] * len(self._items) if written is None else list(written)
        self._name = name
        self._writable = writable

    def written(self) -> list[int | None]:
        """When each element was written; None if it was written in this segment."""
        return self._written

    def _checked(self, value: T) -> T:
        _require_writable(self._writable, self._name)
        if value is None:
            raise ValueError("List views don't support null values.")
        return value

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, slice):
            values = [self._checked(each) for each in value]
            self._items[index] = values
            self._written[index] = [None] * len(values)
        else:
            self._items[index] = self._checked(value)
            self._written[index] = None

    def __delitem__(self, index: Any) -> None:
        _require_writable(self._writable, self._name)
        del self._items[index]
        del self._written[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def insert(self, index: int, value: T) -> None:
        """Insert a value before an index. Raises ValueError if the value is None or the state is read-only."""
        self._items.insert(index, self._checked(value))
        self._written.insert(index, None)

    def append(self, value: T) -> None:
        """Append a value. Raises ValueError if the value is None or the state is read-only."""
        self._items.append(self._checked(value))
        self._written.append(None)

    def extend(self, values: Iterable[T]) -> None:
        """Append all values, or none if one is refused. Raises ValueError for None and read-only state."""
        checked = [self._checked(value) for value in values]
        self._items += checked
        self._written += [None] * len(checked)

    def clear(self) -> None:
        """Remove every element."""
        del self[:]

    def __eq__(self, other: object) -> bool:
        return self._items == (other._items if isinstance(other, ListView) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ListView({self._items!r})"


class MapView(MutableMapping[K, V]):
    """A dictionary that refuses None as a key, and in which NaN is one key; values may be None."""

    __slots__ = ("_items", "_name", "_writable", "_written")

    def __init__(
        self, items: dict[K, V] | None = None, written: dict[K, int | None] | None = None, *, name: str = "",
        writable: bool = True,
    ) -> None:  # fmt: skip
        self._items: dict[K, V] = dict(items or {})
        self._written: dict[K, int | None] = dict.fromkeys(self._items) if written is None else dict(written)
        self._name = name
        self._writable = writable

    def written(self) -> dict[K, int | None]:
        """When the entry of each key was written; None if it was written in this segment."""
        return self._written

    def __getitem__(self, key: K) -> V:
        return self._items[canonical_key(key)]

    def __setitem__(self, key: K, value: V) -> None:
        _require_writable(self._writable, self._name)
        if key is None:
            raise ValueError("Map views don't support null keys.")
        key = canonical_key(key)
        self._items[key] = value
        self._written[key] = None

    def update(self, *given: Any, **named: V) -> None:
        """Set all entries, or none if one is refused. Raises ValueError for None keys and read-only state."""
        entries = {canonical_key(key): value for key, value in dict(*given, **named).items()}
        _require_writable(self._writable, self._name)
        if None in entries:
            raise ValueError("Map views don't support null keys.")
        self._items.update(entries)
        self._written.update(dict.fromkeys(entries))

    def __delitem__(self, key: K) -> None:
        _require_writable(self._writable, self._name)
        key = canonical_key(key)
        del self._items[key]
        del self._written[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def clear(self) -> None:
        """Remove every entry."""
        _require_writable(self._writable, self._name)
        self._items.clear()
        self._written.clear()

    def __repr__(self) -> str:
        return f"MapView({self._items!r})"


def _require_writable(writable: bool, name: str) -> None:
    if not writable:
        raise ValueError(READ_ONLY.format(name))
