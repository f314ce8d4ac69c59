"""What a service says about an error, of which only codes that are known are shown: others may repeat a prompt."""

import hashlib
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

__all__ = ["TRY_AGAIN", "Refusal", "error_of", "phrase", "reported_error", "shown_code"]

TRY_AGAIN = (408, 425, 429)
"""RFC 9110 section 15.5.9, RFC 8470, RFC 6585; 5xx besides."""
SHOWN = 200
"""Characters of a service's message that an error shows, if it may."""
NO_USE = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
"""Codes of errors with status 429 that another attempt does not help against."""
PASSING = frozenset({
    "api_error", "engine_overloaded", "internal_error", "internal_server_error", "overloaded", "overloaded_error",
    "rate_limit_error", "rate_limit_exceeded", "rate_limit_reached", "resource_exhausted", "server_error",
    "service_unavailable", "slow_down", "timeout", "timeout_error", "too_many_requests", "unavailable",
})  # fmt: skip
"""Codes that say that the same request may succeed later, in an answer whose status does not say it."""
CODES = NO_USE | PASSING | {
    "account_deactivated", "authentication_error", "bad_request", "batch_cancelled", "batch_expired", "billing_error",
    "billing_not_active", "content_filter", "content_policy_violation", "context_length_exceeded",
    "deployment_not_found", "duplicate_custom_id", "empty_file", "forbidden", "image_parse_error", "invalid_api_key",
    "invalid_argument", "invalid_base64", "invalid_file_format", "invalid_image", "invalid_json", "invalid_json_line",
    "invalid_method", "invalid_model", "invalid_parameter", "invalid_prompt", "invalid_request",
    "invalid_request_error", "invalid_type", "invalid_url", "invalid_value", "max_tokens_exceeded",
    "mismatched_model", "missing_custom_id", "missing_required_parameter", "model_mismatch", "model_not_available",
    "model_not_found", "not_found", "not_found_error", "organization_restricted", "permission_denied",
    "permission_error", "quota_exceeded", "request_too_large", "requests", "responsible_ai_policy_violation",
    "string_above_max_length", "token_limit_exceeded", "token_limit_reached", "tokens", "tokens_per_min_exceeded",
    "too_many_tasks", "unauthorized", "unknown_model", "unknown_parameter", "unprocessable_entity",
    "unsupported_country_region_territory", "unsupported_model", "unsupported_parameter", "unsupported_value",
    "validation_error",
}  # fmt: skip
"""Codes of widespread services, in lower case with underscores."""
_STATUS = re.compile(r"(?:scripted_)?[1-5]\d\d|scripted")
"""A status as a code; those of `ScriptedService` besides."""
_HASHED = "another code, SHA-256"
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[-. ]")


class Refusal(NamedTuple):
    """The error object of an answer."""

    code: str
    """A known code or a status, or the hash of another text; empty if there is none."""
    said: str
    """The message of the service, which may repeat a prompt."""
    known: str
    """The code by its name in CODES; empty if it is not among them."""
    status: int | None
    """The status that it has as a code."""

    @property
    def passes(self) -> bool:
        """Whether the error says that the same request may succeed later."""
        status = self.status or 0
        return not self.final and (self.known in PASSING or status in TRY_AGAIN or status >= 500)

    @property
    def final(self) -> bool:
        """Whether no other attempt helps, whatever the status is."""
        return self.known in NO_USE

    @classmethod
    def of(cls, error: Any) -> "Refusal":
        """Read the `error` of an answer, which may have any form."""
        details: Mapping[str, Any] = error if isinstance(error, dict) else {}
        said = details.get("message", error)
        given = [details[name] for name in ("code", "type", "status") if type(details.get(name)) in (str, int)]
        texts = [str(each)[:SHOWN] for each in given if each != ""]
        status = next((int(text[-3:]) for text in texts if _STATUS.fullmatch(text) and text[-1].isdigit()), None)
        known = next((name for text in texts if (name := _name(text)) in CODES), "")
        shown = [shown_code(text) for text in texts]
        code = next((each for each in shown if not each.startswith(_HASHED)), shown[0] if shown else "")
        return cls(code, said[:SHOWN].encode(errors="replace").decode().strip() if isinstance(said, str) else "",
                   known, status)  # fmt: skip


def shown_code(text: str) -> str:
    """The code as errors show it: by its name in CODES, a status as it is, another text as a hash."""
    if _STATUS.fullmatch(text):
        return text
    name = _name(text)
    if name in CODES:
        return name
    return f"{_HASHED} {hashlib.sha256(text.encode(errors='replace')).hexdigest()[:8]}"


def error_of(answer: Any) -> Any:
    """The error of an answer with a status of an error; some services send its fields without a name for them."""
    if not isinstance(answer, dict):
        return None
    return answer if "error" not in answer and "message" in answer else answer.get("error")


def reported_error(answer: Mapping[str, Any]) -> Any:
    """The error of an answer with a status of success, which some services send; None if it has none."""
    error = answer.get("error")
    if error and not answer.keys() & {"choices", "data", "results"}:
        return error
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if isinstance(choice, dict) and choice.get("finish_reason") == "error":
        return choice.get("error") or error or {}
    return None


def _name(text: str) -> str:
    return _WORDS.sub("_", text).lower()


def phrase(status: int) -> str:
    """The name of a status; empty for an unknown one."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
