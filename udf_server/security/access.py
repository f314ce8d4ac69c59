"""Access identifies callers by bearer token or client certificate, and decides which functions they may call.

The access file (TOML) has a table per principal. It has hashes of tokens, so that reading it gives no access:

    [reporting]
    token_sha256 = ["5e88..."]          # one or more, so that tokens can be rotated
    functions = ["geocode", "my_*"]     # patterns of names; default: every function

    [etl]
    certificate = "etl.example"         # common name or DNS name of the client's certificate
"""

import fnmatch
import hashlib
import re
import secrets
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from remote_udf.errors import ErrorCode, ErrorKind, StreamError
from remote_udf.option_values import unknown
from udf_server.base.errors import InvalidConfig
from udf_server.base.fairness import Party
from udf_server.security.callers import DEFAULT, OTHERS, CallerSettings
from udf_server.security.files import Watch, WatchedFiles

__all__ = ["ANYBODY", "Access", "Caller", "access_rules", "hashed", "new_token"]

_SCHEME = "bearer "
_KEYS = frozenset({"token_sha256", "certificate", "functions"})
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Caller:
    """The caller of a stream."""

    name: str
    """The principal; empty if callers are not authenticated."""
    functions: tuple[str, ...] = ("*",)
    """Patterns of the names of functions that it may call."""
    peer: str = ""
    """Its address in gRPC's format, such as "ipv4:10.0.0.7:51234"."""
    settings: CallerSettings = DEFAULT
    """What it may use, and who is served first."""

    @property
    def identity(self) -> str:
        """What distinguishes it from other callers: its name, else its address without the port."""
        if self.name or self.peer.startswith("unix:"):
            return self.name or "unix:"
        return self.peer.rpartition(":")[0] or self.peer

    @property
    def same_host(self) -> bool:
        """Whether its address shows that it calls from this host."""
        return self.peer.startswith(("unix:", "ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D"))

    def party(self, job: str) -> Party:
        """The party of a stream of a job of this caller."""
        return Party(self.identity, job, share=self.settings.share, priority=self.settings.priority)

    def may_call(self, function: str) -> bool:
        return any(fnmatch.fnmatchcase(function, pattern) for pattern in self.functions)

    def require(self, function: str) -> None:
        """Raise StreamError PERMISSION_DENIED unless the caller may call functions of that name.

        The error does not reveal whether such a function exists.
        """
        if not self.may_call(function):
            raise StreamError(
                ErrorKind.PROTOCOL, ErrorCode.PERMISSION_DENIED, f"{self.name!r} may not call function {function!r}"
            )


ANYBODY = Caller("")


@dataclass(frozen=True)
class _Rules:
    """The rules of the access file."""

    by_hash: Mapping[str, Caller]
    by_certificate: Mapping[str, Caller]


class Access:
    """Identifies callers. Without access file and client certificates, every caller may call every function."""

    def __init__(
        self,
        rules: WatchedFiles[_Rules] | None,
        *,
        certificates: bool = False,
        settings: Mapping[str, CallerSettings] | None = None,
    ) -> None:
        """If `certificates` is set, TLS rejects clients without a certificate that the server's CA has signed.

        `settings` are those of callers by name. Raises InvalidConfig if no caller can have one of the names.
        """
        self._rules = rules
        self._certificates = certificates
        self.settings = settings or {}
        self._check_names()

    def _check_names(self) -> None:
        named = [name for name in self.settings if name != OTHERS]
        if named and not self.restricted:
            raise InvalidConfig(
                f"setting callers.{named[0]}: callers have no names, because neither access_file nor tls_client_ca is "
                f"set; only callers.{OTHERS!r} is possible"
            )
        if self._rules is None:
            return
        rules = self._rules.current()
        known = {caller.name for caller in (*rules.by_hash.values(), *rules.by_certificate.values())}
        for name in named:
            if name not in known:
                raise InvalidConfig(f"setting callers.{name}: {unknown('principal of the access file', name, known)}")

    @property
    def restricted(self) -> bool:
        """Whether callers must authenticate."""
        return self._rules is not None or self._certificates

    @property
    def takes_tokens(self) -> bool:
        """Whether callers may authenticate by bearer token."""
        return self._rules is not None

    def identify(
        self, metadata: Iterable[tuple[str, str | bytes]], auth: Mapping[str, Iterable[bytes]], peer: str
    ) -> Caller:
        """The caller of a request. Raises StreamError UNAUTHENTICATED; its message contains no secret."""
        # The common name of a verified client certificate, then its DNS names.
        of_certificate = *auth.get("x509_common_name", ()), *auth.get("peer_dns", ())
        names = [name.decode(errors="replace") for name in of_certificate]
        if self._rules is None:
            name = names[0] if names else ""
            return Caller(name, peer=peer, settings=self._settings_of(name))
        rules = self._rules.current()
        token = _token(metadata)
        found = rules.by_hash.get(hashed(token)) if token is not None else None
        if found is None and token is None:
            found = next((rules.by_certificate[name] for name in names if name in rules.by_certificate), None)
        if found is None:
            why = "no bearer token" if token is None else "an unknown bearer token"
            if names:
                why += f", and a certificate for {names[0]!r}, which has no rule"
            raise StreamError(ErrorKind.PROTOCOL, ErrorCode.UNAUTHENTICATED, f"the caller is not known: {why}")
        return Caller(found.name, found.functions, peer, self._settings_of(found.name))

    def _settings_of(self, name: str) -> CallerSettings:
        return self.settings.get(name) or self.settings.get(OTHERS) or DEFAULT


def access_rules(path: Path, **watch: Unpack[Watch]) -> WatchedFiles[_Rules]:
    """The access file, watched. Raises InvalidConfig, which names the principal and the key that is wrong."""
    return WatchedFiles([path], lambda contents: _parsed(contents[0], path), **watch)


def hashed(token: str) -> str:
    """The hash of a token in the access file. Tokens are random and long, so a plain hash is enough."""
    return hashlib.sha256(token.encode()).hexdigest()


def new_token() -> str:
    """A token of 256 random bits."""
    return secrets.token_urlsafe(32)


def _token(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    for key, value in metadata:
        if key == "authorization" and isinstance(value, str) and value.lower().startswith(_SCHEME):
            return value[len(_SCHEME) :].strip()
    return None


def _parsed(content: bytes, path: Path) -> _Rules:
    try:
        tables = tomllib.loads(content.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidConfig(f"access file {path}: {error}") from error
    by_hash: dict[str, Caller] = {}
    by_certificate: dict[str, Caller] = {}
    for name, rule in tables.items():
        source = f"access file {path}, principal {name!r}"
        if not isinstance(rule, dict) or not rule.keys() <= _KEYS:
            raise InvalidConfig(f"{source}: a table of {', '.join(sorted(_KEYS))} is expected")
        caller = Caller(name, tuple(_texts(rule.get("functions", ["*"]), f"{source}, functions")))
        hashes = _texts(rule.get("token_sha256", []), f"{source}, token_sha256")
        certificates = _texts(rule.get("certificate", []), f"{source}, certificate")
        if not hashes and not certificates:
            raise InvalidConfig(f"{source}: neither token_sha256 nor certificate, so it matches no caller")
        for known, identities in ((by_hash, hashes), (by_certificate, certificates)):
            for identity in identities:
                if known is by_hash and not _HASH.fullmatch(identity):
                    # The value is not shown, because it may be the token itself.
                    raise InvalidConfig(f"{source}: token_sha256 is not 64 hexadecimal digits in lower case")
                if identity in known:
                    raise InvalidConfig(f"{source}: identifies the same caller as {known[identity].name!r}")
                known[identity] = caller
    return _Rules(by_hash, by_certificate)


def _texts(value: str | list[str], source: str) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise InvalidConfig(f"{source}: expected a string, or a list of strings")
    return texts
