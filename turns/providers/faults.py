"""What a provider says went wrong, as one of our codes. Its own words end here.

Services disagree about where the word is: `error.code` as text, as a number or null,
`error.type` instead, a bare status, a page of HTML. A text code counts first, then the type,
then the number.
"""

from __future__ import annotations

from typing import Any, Final

from recovery.errors import ErrorCode
from turns.providers import jsontext

_BY_WORD: Final[dict[str, ErrorCode]] = {
    "authentication_error": ErrorCode.PROVIDER_AUTH,
    "invalid_api_key": ErrorCode.PROVIDER_AUTH,
    "permission_error": ErrorCode.PROVIDER_FORBIDDEN,
    "unsupported_country_region_territory": ErrorCode.PROVIDER_FORBIDDEN,
    "model_not_found": ErrorCode.PROVIDER_NOT_FOUND,
    "not_found_error": ErrorCode.PROVIDER_NOT_FOUND,
    "context_length_exceeded": ErrorCode.PROVIDER_CONTEXT_EXCEEDED,
    "exceed_context_size_error": ErrorCode.PROVIDER_CONTEXT_EXCEEDED,
    "rate_limit_error": ErrorCode.PROVIDER_RATE_LIMITED,
    "rate_limit_exceeded": ErrorCode.PROVIDER_RATE_LIMITED,
    "slow_down": ErrorCode.PROVIDER_RATE_LIMITED,
    # not transient, although they come with 429
    "billing_hard_limit_reached": ErrorCode.PROVIDER_QUOTA,
    "credit_balance_exhausted": ErrorCode.PROVIDER_QUOTA,
    "insufficient_quota": ErrorCode.PROVIDER_QUOTA,
    "bio_policy": ErrorCode.PROVIDER_REJECTED,
    "data_residency_mismatch": ErrorCode.PROVIDER_REJECTED,
    "invalid_prompt": ErrorCode.PROVIDER_REJECTED,
    "invalid_request_error": ErrorCode.PROVIDER_REJECTED,
    "misalignment_policy_violation": ErrorCode.PROVIDER_REJECTED,
    "unsupported_parameter": ErrorCode.PROVIDER_REJECTED,
    "overloaded_error": ErrorCode.PROVIDER_UNAVAILABLE,
    "server_error": ErrorCode.PROVIDER_UNAVAILABLE,
    "server_is_overloaded": ErrorCode.PROVIDER_UNAVAILABLE,
    "service_unavailable_error": ErrorCode.PROVIDER_UNAVAILABLE,
    "timeout": ErrorCode.PROVIDER_TIMEOUT,
}
_BY_STATUS: Final[dict[int, ErrorCode]] = {
    400: ErrorCode.PROVIDER_REJECTED,
    401: ErrorCode.PROVIDER_AUTH,
    402: ErrorCode.PROVIDER_QUOTA,
    403: ErrorCode.PROVIDER_FORBIDDEN,
    404: ErrorCode.PROVIDER_NOT_FOUND,
    408: ErrorCode.PROVIDER_UNAVAILABLE,
    409: ErrorCode.PROVIDER_UNAVAILABLE,
    429: ErrorCode.PROVIDER_RATE_LIMITED,
}
# The words that may sharpen a status; otherwise the status is the better witness.
_SHARPER: Final[dict[int, frozenset[ErrorCode]]] = {
    400: frozenset(
        {
            ErrorCode.PROVIDER_CONTEXT_EXCEEDED,
            ErrorCode.PROVIDER_AUTH,
            ErrorCode.PROVIDER_NOT_FOUND,
            ErrorCode.PROVIDER_QUOTA,
        }
    ),
    403: frozenset({ErrorCode.PROVIDER_QUOTA}),
    413: frozenset({ErrorCode.PROVIDER_CONTEXT_EXCEEDED}),
    422: frozenset({ErrorCode.PROVIDER_CONTEXT_EXCEEDED}),
    429: frozenset({ErrorCode.PROVIDER_QUOTA}),
}
_CLIENT_ERROR: Final = range(400, 500)
_SERVER_ERROR: Final = range(500, 600)


def from_status(status: int, body: bytes = b"") -> ErrorCode:
    """Return the code for an answer that is not 200; `body` may sharpen it."""
    code = _by_status(status)
    sharper = _SHARPER.get(status)
    if sharper:
        word = _by_word(_error_in(body))
        if word in sharper:
            return word
    return code


def from_body(body: bytes) -> ErrorCode | None:
    """Return the code of the error envelope in `body`, None when there is none."""
    error = _error_in(body)
    return None if error is None else from_error(error)


def from_error(error: object) -> ErrorCode:
    """Return the code for an error object (or text) inside a stream that had begun with 200."""
    word = _by_word(error)
    if word is not None:
        return word
    number = error.get("code") if isinstance(error, dict) else None
    if type(number) is int and (number in _CLIENT_ERROR or number in _SERVER_ERROR):
        return _by_status(number)
    return ErrorCode.PROVIDER_FAILED


def _by_status(status: int) -> ErrorCode:
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status in _CLIENT_ERROR:
        return ErrorCode.PROVIDER_REJECTED
    if status in _SERVER_ERROR:
        return ErrorCode.PROVIDER_UNAVAILABLE
    # a redirect would carry our credentials elsewhere; another success carries no stream
    return ErrorCode.PROVIDER_PROTOCOL


def _by_word(error: object) -> ErrorCode | None:
    if not isinstance(error, dict):
        return None
    for key in ("code", "type"):
        word = error.get(key)
        if isinstance(word, str) and word in _BY_WORD:
            return _BY_WORD[word]
    return None


def _error_in(body: bytes) -> Any:
    try:
        value = jsontext.decode(body.decode())
    except (UnicodeDecodeError, jsontext.MalformedJson):
        return None
    return value.get("error") if isinstance(value, dict) else None
