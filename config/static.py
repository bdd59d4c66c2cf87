"""Static files through ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from whitenoise.middleware import WhiteNoiseMiddleware


class StaticFiles(WhiteNoiseMiddleware):  # type: ignore[misc]  # untyped
    """WhiteNoise that stays out of the way of asynchronous requests.

    The original is synchronous: each request would wait in a thread of its own, and a file's
    answer would be an iterator that Django's ASGI handler reads to the end with a warning. The
    files are small: they are read at once, and everything else passes by.
    """

    sync_capable = True
    async_capable = True

    def __init__(
        self,
        get_response: Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]],
    ) -> None:
        super().__init__(get_response)
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        """Answer with the file at this address, or pass the request on."""
        found = self._find(request.path_info)
        if iscoroutinefunction(self):
            return self._answer(found, request)
        return self.serve(found, request) if found else self.get_response(request)

    async def _answer(self, found: Any, request: HttpRequest) -> HttpResponseBase:
        if found is None:
            response: HttpResponseBase = await self.get_response(request)
            return response
        return await asyncio.to_thread(self.serve, found, request)

    def _find(self, path: str) -> Any:
        return self.find_file(path) if self.autorefresh else self.files.get(path)

    @staticmethod
    def serve(static_file: Any, request: HttpRequest) -> HttpResponse:
        """Return the file, or what its conditional or range request asks for."""
        found = static_file.get_response(request.method, request.META)
        content = b""
        if found.file is not None:
            with found.file:
                content = found.file.read()
        response = HttpResponse(content, status=int(found.status))
        del response["content-type"]
        for name, value in found.headers:
            response[name] = value
        return response
