"""Settings of plugins from the environment: types, what is required, and what a message shows."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from udf_server.base.errors import DeclarationError
from udf_server.settings import InvalidSetting, from_environment, setting


def _upper(text):
    if text == "wrong":
        raise InvalidSetting("is not an upper case")
    if text.isdigit():
        raise ValueError(f"a library says {text}")
    return text.upper()


@dataclass(frozen=True)
class Shop:
    url: str = setting("where the shop is, such as https://shop.example")
    token: str | None = setting("what it wants to see", default=None, secret=True)
    connections: int = 10
    seconds: float = 1.5
    verbose: bool = False
    folder: Path | None = None
    code: str = setting("a code", default="X", read=_upper)


def shop(**variables):
    return from_environment(Shop, "SHOP_", {"SHOP_URL": "u", **{f"SHOP_{k}": v for k, v in variables.items()}})


def test_a_field_is_the_variable_of_its_name_behind_the_prefix():
    assert shop() == Shop("u")
    found = shop(TOKEN="t", CONNECTIONS="3", SECONDS="2", VERBOSE="Yes", FOLDER="/f", CODE="abc", OTHER="1")
    assert found == Shop("u", "t", 3, 2.0, True, Path("/f"), "ABC")
    assert isinstance(found.seconds, float)


def test_the_environment_of_the_process_is_the_default(monkeypatch):
    monkeypatch.setenv("SHOP_URL", "here")
    assert from_environment(Shop, "SHOP_").url == "here"


def test_a_required_one_that_is_missing_or_empty_is_named_with_what_it_is_for():
    with pytest.raises(InvalidSetting, match=r"^SHOP_URL is not set: where the shop is, such as https://shop.example$"):
        shop(URL="")


def test_an_empty_one_counts_as_not_set():
    assert shop(CONNECTIONS="", TOKEN="", CODE="") == Shop("u")


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("CONNECTIONS", "many", "is not a whole number greater than zero"),
        ("CONNECTIONS", "0", "is not a whole number greater than zero"),
        ("CONNECTIONS", "2.5", "is not a whole number greater than zero"),
        ("SECONDS", "nan", "is not a number greater than zero"),
        ("SECONDS", "inf", "is not a number greater than zero"),
        ("SECONDS", "-1", "is not a number greater than zero"),
        ("VERBOSE", "maybe", "is neither true nor false"),
        ("CODE", "wrong", "is not an upper case"),
    ],
)
def test_what_is_malformed_is_named_and_not_shown(name, text, why):
    with pytest.raises(InvalidSetting) as raised:
        shop(**{name: text})
    assert str(raised.value) == f"SHOP_{name} {why}"


def test_no_value_is_shown_where_a_library_refuses_it():
    with pytest.raises(InvalidSetting) as raised:
        shop(CODE="12345")
    assert "SHOP_CODE" in str(raised.value) and "12345" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_a_secret_is_not_in_the_repr():
    assert "s3cr3t" not in repr(shop(TOKEN="s3cr3t"))


def test_a_type_that_cannot_be_read_is_a_mistake_of_the_author():
    @dataclass
    class Wrong:
        names: list[str]

    with pytest.raises(DeclarationError, match=r"Wrong\.names: expected str, int, .* found list\[str\]"):
        from_environment(Wrong, "X_", {"X_NAMES": "a"})
