"""What a credential in a path or URI is: the one rule for all that read, write or show one.

Plans, logs, exceptions and Spark's event log show paths, so a path with a credential is refused before it gets there.
The rule rather refuses too much: a secret often has characters that end a part of a URI, such as `/`, `?` or `#`.
"""

import re
from urllib.parse import unquote

__all__ = ["has_credentials", "without_credentials"]

_PASSWORD = re.compile(r"(?P<before>[A-Za-z][A-Za-z0-9+.-]+:/*)(?P<secret>[^/@:]*:.*)@", re.DOTALL)
"""A user and a password. The user has no slash, so `s3://bucket/a:b@c` has none."""
_LATER = re.compile(r"[A-Za-z0-9+.-]+:/+[^/@:]*:.*@", re.DOTALL)
"""A user and a password in a URI that follows other text, as in a list of paths."""
_TOKEN = re.compile(r"https?:/+[^/@]+@", re.IGNORECASE)
"""A user of a web server is often a token; elsewhere, as in `abfss://container@account`, it is none."""
_PORT = re.compile(r"(?P<scheme>[A-Za-z0-9+.-]+):/+[^/@:]+:\d{1,5}(/|$)")
"""A host with a port. Object stores have buckets instead."""
_BUCKETS = {"s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss", "wasb", "wasbs", "adl", "oss", "cos", "r2"}
_USER = re.compile(r"(?P<before>[A-Za-z][A-Za-z0-9+.-]+:/+)(?P<secret>[^/@\s]+)@")
_PARAMETER = re.compile(r"(?P<before>[?&;#](?P<name>[^=?&;#/]+)=)(?P<secret>[^&;#\s]+)")
_SECRET_NAMES = re.compile(
    "pass(word|wd|phrase)|pwd|secret|token|credential|signature|(access|account|api|private|shared)key|accessid"
    "|connectionstring|authorization|oauth|bearer|jwt"
)
_WHOLE_NAMES = {"auth", "key", "pass", "pat", "sas", "sig"}


def has_credentials(path: str) -> bool:
    """Whether a path or URI has a password, a token, a key or a signature in it, escaped or not."""
    plain = unquote(path)
    return _has_password(path) or bool(_secret_parameters(path)) or (plain != path and has_credentials(plain))


def without_credentials(text: str) -> str:
    """The text to be shown: users, passwords and values of secret parameters of its URI are omitted."""
    for match in reversed(_secret_parameters(text)):
        text = text[: match.start("secret")] + "..." + text[match.end("secret") :]
    if _has_password(text):
        text = _PASSWORD.sub(r"\g<before>...@", text)
    return _USER.sub(r"\g<before>...@", text)


def _has_password(text: str) -> bool:
    port = _PORT.match(text)
    if port is not None and port["scheme"].lower() not in _BUCKETS:
        return False
    return any((_PASSWORD.match(text), _LATER.search(text), _TOKEN.search(text)))


def _secret_parameters(text: str) -> list[re.Match[str]]:
    return [match for match in _PARAMETER.finditer(text) if _is_secret(unquote(match["name"]))]


def _is_secret(name: str) -> bool:
    plain = re.sub(r"[\W_]", "", name).lower()
    return plain in _WHOLE_NAMES or _SECRET_NAMES.search(plain) is not None
