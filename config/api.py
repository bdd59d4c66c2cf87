"""The HTTP API: who asks, and how every refusal looks.

Whatever goes wrong under /api/, the answer is {"code", "message"}: refused by a transition, not
understood, not signed in, unknown address, wrong method, too large, or our own failure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

import structlog
from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.utils.decorators import sync_and_async_middleware
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError
from ninja.openapi.schema import REF_TEMPLATE, OpenAPISchema
from ninja.security.base import AuthBase
from ninja.security.http import HttpAuthBase
from ninja.utils import check_csrf

from recovery.errors import BoundExceeded, ErrorCode, Refused
from recovery.executor import in_thread
from semantic.api import router as semantic_router
from turns import credentials
from turns.api import router as turns_router
from turns.schemas import Problem
from work.api import router as work_router

log = structlog.get_logger(__name__)

PREFIX: Final = "/api/"
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
RETRY_SECONDS: Final = 1

# Every other code of a refusal is 422: understood, and not acceptable as it is.
STATUS: Final[Mapping[ErrorCode, int]] = {
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.NOT_SIGNED_IN: 401,
    ErrorCode.CSRF_FAILED: 403,
    ErrorCode.METHOD_NOT_ALLOWED: 405,
    ErrorCode.REQUEST_TOO_LARGE: 413,
    ErrorCode.TURN_IN_PROGRESS: 409,
    ErrorCode.CLIENT_KEY_CONFLICT: 409,
    ErrorCode.RATE_LIMITED: 429,
    ErrorCode.JOB_LIMIT_REACHED: 429,
    ErrorCode.PAUSED: 503,
    ErrorCode.SERVICE_UNAVAILABLE: 503,
    ErrorCode.INTERNAL_ERROR: 500,
}
CODE: Final[Mapping[int, ErrorCode]] = {
    401: ErrorCode.NOT_SIGNED_IN,
    403: ErrorCode.CSRF_FAILED,
    404: ErrorCode.NOT_FOUND,
    405: ErrorCode.METHOD_NOT_ALLOWED,
    413: ErrorCode.REQUEST_TOO_LARGE,
    429: ErrorCode.RATE_LIMITED,
    503: ErrorCode.SERVICE_UNAVAILABLE,
}


class Bearer(HttpAuthBase):
    """A bearer token, made by `manage.py create_token`. It goes before a cookie."""

    openapi_scheme = "bearer"

    async def __call__(self, request: HttpRequest) -> int | None:
        """Return who the token belongs to, None where there is no such header.

        Raises:
            Refused: there is one, and it is not valid.
        """
        authorization = request.headers.get("Authorization")
        if authorization is None:
            return None
        credential = await in_thread(credentials.of_bearer, authorization)
        if credential is None:
            raise Refused(ErrorCode.NOT_SIGNED_IN)
        return credential.user_id


class SessionCookie(AuthBase):
    """The page's session, whose unsafe requests carry the CSRF token in `X-CSRFToken`."""

    openapi_type = "apiKey"
    openapi_in = "cookie"
    openapi_name = settings.SESSION_COOKIE_NAME

    async def __call__(self, request: HttpRequest) -> int | None:
        """Return who is signed in, None when nobody is.

        Raises:
            Refused: the request changes something and did not come from our own page.
        """
        session_key = request.COOKIES.get(settings.SESSION_COOKIE_NAME)
        if not session_key:
            return None
        credential = await in_thread(credentials.of_session, session_key)
        if credential is None:
            return None
        if request.method not in SAFE_METHODS and check_csrf(request) is not None:
            raise Refused(ErrorCode.CSRF_FAILED)
        return credential.user_id


class DescribedAPI(NinjaAPI):
    """Describes with every operation the refusals that no endpoint names for itself."""

    def get_openapi_schema(self, **place: Any) -> OpenAPISchema:
        """Return the description: not signed in, a forged form, too large, and our failures."""
        schema = super().get_openapi_schema(**place)
        for methods in schema["paths"].values():
            for method, operation in methods.items():
                operation["responses"] |= _refused_everywhere(
                    is_safe=method.upper() in SAFE_METHODS,
                    has_body="requestBody" in operation,
                )
        return schema


def _refused_everywhere(*, is_safe: bool, has_body: bool) -> dict[int, Any]:
    statuses = [401, *([] if is_safe else [403]), *([413] if has_body else []), 500, 503]
    problem = {"schema": {"$ref": REF_TEMPLATE.format(model=Problem.__name__)}}
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {"application/json": problem},
        }
        for status in statuses
    }


api = DescribedAPI(
    title="Holdfast",
    version="1",
    description=(
        "Conversations with an assistant whose work survives the death of any process. A "
        "method that an address does not have is answered with 405 and `Allow`."
    ),
    auth=[Bearer(), SessionCookie()],
    docs_url=None,
    openapi_url="/openapi.json",
)
api.add_router("", turns_router)
api.add_router("", work_router)
api.add_router("", semantic_router)


def problem(
    code: ErrorCode, *, status: int | None = None, retry_after_seconds: int | None = None
) -> JsonResponse:
    """Return the answer for a refusal: the code, and its public sentence."""
    response = JsonResponse(
        {"code": code.value, "message": str(code.label)},
        status=status or STATUS.get(code, 422),
    )
    if retry_after_seconds is not None:
        response.headers["Retry-After"] = str(retry_after_seconds)
    return response


@api.exception_handler(Refused)
def _refused(_request: HttpRequest, refused: Refused) -> HttpResponse:
    return problem(refused.code, retry_after_seconds=refused.retry_after_seconds)


@api.exception_handler(BoundExceeded)
def _bound_exceeded(_request: HttpRequest, exceeded: BoundExceeded) -> HttpResponse:
    return problem(exceeded.code)


@api.exception_handler(ValidationError)
def _not_valid(_request: HttpRequest, error: ValidationError) -> HttpResponse:
    # Pydantic's name for text that is no Unicode: a lone surrogate in a JSON escape.
    broken = any(one.get("type") == "string_unicode" for one in error.errors)
    return problem(ErrorCode.INVALID_TEXT if broken else ErrorCode.INVALID_REQUEST)


@api.exception_handler(AuthenticationError)
def _not_signed_in(_request: HttpRequest, _error: AuthenticationError) -> HttpResponse:
    return problem(ErrorCode.NOT_SIGNED_IN)


@api.exception_handler(HttpError)
def _http_error(_request: HttpRequest, error: HttpError) -> HttpResponse:
    code = CODE.get(error.status_code, ErrorCode.INVALID_REQUEST)
    return problem(code, status=error.status_code)


@api.exception_handler(RequestDataTooBig)
def _too_large(_request: HttpRequest, _error: RequestDataTooBig) -> HttpResponse:
    return problem(ErrorCode.REQUEST_TOO_LARGE)


@api.exception_handler(OperationalError)
@api.exception_handler(InterfaceError)
def _database_away(_request: HttpRequest, error: Exception) -> HttpResponse:
    log.warning("api.database_away", exc_info=error)
    return problem(ErrorCode.SERVICE_UNAVAILABLE, retry_after_seconds=RETRY_SECONDS)


@api.exception_handler(Exception)
def _failed(_request: HttpRequest, error: Exception) -> HttpResponse:
    log.error("api.failed", exc_info=error)
    return problem(ErrorCode.INTERNAL_ERROR)


Answer = Callable[[HttpRequest], HttpResponseBase]
AsyncAnswer = Callable[[HttpRequest], Awaitable[HttpResponseBase]]


@sync_and_async_middleware
def json_refusals(get_response: Answer | AsyncAnswer) -> Answer | AsyncAnswer:
    """Give Django's own refusals under /api/ (unknown address, wrong method) our one form."""
    if iscoroutinefunction(get_response):

        async def answer_async(request: HttpRequest) -> HttpResponseBase:
            return _in_our_form(request, await get_response(request))

        return answer_async

    def answer(request: HttpRequest) -> HttpResponseBase:
        response: Any = get_response(request)
        return _in_our_form(request, response)

    return answer


def _in_our_form(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    fine = response.status_code < HTTPStatus.BAD_REQUEST
    ours = response.headers.get("Content-Type", "").startswith("application/json")
    if fine or ours or not request.path.startswith(PREFIX):
        return response
    failed = response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR
    code = ErrorCode.INTERNAL_ERROR if failed else ErrorCode.INVALID_REQUEST
    refusal = problem(CODE.get(response.status_code, code), status=response.status_code)
    if "Allow" in response.headers:
        refusal.headers["Allow"] = response.headers["Allow"]
    return refusal
