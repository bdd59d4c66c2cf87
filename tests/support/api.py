"""A client of the API, signed in by a token, and the one form in which it is refused."""

from __future__ import annotations

import json
from typing import Any

from django.test import Client

from recovery.errors import ErrorCode
from turns.tokens import create_token


def signed_in(user_id: int) -> Client:
    """Return a client with a token of that person's."""
    token = create_token(user_id)
    return Client(headers={"authorization": f"Bearer {token}"}, raise_request_exception=False)


def ask(client: Client, method: str, path: str, body: object = None, **headers: str) -> Any:
    """Send a request; the body may be anything that JSON can say."""
    data = "" if body is None else json.dumps(body)
    return client.generic(
        method, f"/api/v1{path}", data, content_type="application/json", headers=headers
    )


class Api:
    """One person's program, with a bearer token."""

    def __init__(self, user_id: int) -> None:
        self.user_id = user_id
        self._client = signed_in(user_id)

    def __call__(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Return the status and the JSON of an answer."""
        answer = self.answer(method, path, body)
        return answer.status_code, answer.json() if answer.content else None

    def answer(self, method: str, path: str, body: object = None) -> Any:
        """Return the answer whole."""
        return ask(self._client, method, path, body)


def refusal(answer: Any) -> tuple[int, str]:
    """Return the status and code of an answer in our form; fail on any other."""
    content = answer.json()
    assert content.keys() == {"code", "message"}, content
    assert content["message"] == ErrorCode(content["code"]).label
    return answer.status_code, content["code"]
