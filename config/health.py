"""Whether this process can serve."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from asgiref.sync import iscoroutinefunction
from django.db import Error, connection
from django.http import HttpRequest, JsonResponse
from django.http.response import HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

PATH: Final = "/healthz"

Answer = Callable[[HttpRequest], HttpResponseBase]
AsyncAnswer = Callable[[HttpRequest], Awaitable[HttpResponseBase]]


@sync_and_async_middleware
def health(get_response: Answer | AsyncAnswer) -> Answer | AsyncAnswer:
    """Answer `/healthz` whatever host is named and whatever scheme is spoken.

    It is asked by load balancers and by `manage.py up`, which know this process by its address
    alone; a view would be reached only under one of ALLOWED_HOSTS.
    """
    if iscoroutinefunction(get_response):

        async def answer_async(request: HttpRequest) -> HttpResponseBase:
            if request.path_info == PATH:
                return await asyncio.to_thread(_in_thread)
            response: HttpResponseBase = await get_response(request)
            return response

        return answer_async

    def answer(request: HttpRequest) -> HttpResponseBase:
        if request.path_info == PATH:
            return healthz()
        response: Any = get_response(request)
        return cast(HttpResponseBase, response)

    return answer


def healthz() -> JsonResponse:
    """Answer 200 when the database answers too, 503 when it does not. Needs no login."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except Error:
        return JsonResponse({"status": "unavailable"}, status=503)
    return JsonResponse({"status": "ok"})


def _in_thread() -> JsonResponse:
    try:
        return healthz()
    finally:
        connection.close()
