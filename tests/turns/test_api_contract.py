"""Every answer of the API is what its own OpenAPI description says, whatever is asked."""

from __future__ import annotations

from typing import Any

import pytest
import requests
import schemathesis
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import checks

from config.api import api
from tests.factories import ComputerFactory, TurnFactory, WorkJobFactory, WorkStepFactory
from turns.tokens import create_token

pytestmark = pytest.mark.django_db(transaction=True)

SCHEMA = schemathesis.openapi.from_dict(api.get_openapi_schema())
OPERATIONS: list[Any] = [found.ok() for found in SCHEMA.get_all_operations()]  # type: ignore[union-attr]
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]


def test_the_description_is_served_and_lists_the_endpoints() -> None:
    answer = Client().get("/api/v1/openapi.json")
    assert answer.status_code == 200
    assert answer.json()["paths"].keys() == api.get_openapi_schema()["paths"].keys()
    assert len(OPERATIONS) == 17


def test_every_operation_names_the_refusals_that_any_may_meet() -> None:
    for methods in api.get_openapi_schema()["paths"].values():
        for method, described in methods.items():
            expected = {401, 500, 503}
            expected |= {403} if method != "get" else set()
            expected |= {413} if "requestBody" in described else set()
            assert expected <= set(described["responses"])
            assert described["responses"][401] == described["responses"][503] | {
                "description": "Unauthorized"
            }


def test_a_key_is_described_with_both_its_bounds() -> None:
    bodies = api.get_openapi_schema()["components"]["schemas"]
    for body in ("NewConversation", "Question", "NewJob"):
        key = bodies[body]["properties"]["client_key"]["anyOf"]
        assert key == [{"type": "string", "minLength": 1, "maxLength": 200}, {"type": "null"}]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: f"{one.method} {one.path}")
def test_answers_are_as_described(operation: Any) -> None:
    turn = TurnFactory(completed=True)
    person = turn.conversation.owner
    job = WorkJobFactory(person=person, conversation=turn.conversation, running=True)
    WorkStepFactory(job=job, succeeded=True)
    ComputerFactory(person=person)
    real = {
        "conversation_id": str(turn.conversation_id),
        "turn_id": str(turn.pk),
        "message_id": str(turn.user_message_id),
        "job_id": str(job.pk),
    }
    token = create_token(turn.conversation.owner_id)
    client = Client(headers={"authorization": f"Bearer {token}"})

    @settings(
        max_examples=15, deadline=None, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )  # fmt: skip
    @given(case=operation.as_strategy(), is_real=st.booleans())
    def ask(case: Any, is_real: bool) -> None:
        if is_real:
            case.path_parameters = {name: real[name] for name in case.path_parameters or {}}
        sent = case.as_transport_kwargs(base_url="http://testserver")
        request = requests.Request(
            sent["method"], sent["url"], params=sent.get("params"), json=sent.get("json"),
            data=sent.get("data"), headers={"content-type": "application/json"},
        ).prepare()  # fmt: skip
        answer = client.generic(
            request.method or "", request.path_url, request.body or b"",
            content_type="application/json",
        )  # fmt: skip
        received = schemathesis.Response(
            answer.status_code,
            {name.lower(): [value] for name, value in answer.headers.items()},
            answer.content,
            request,
            elapsed=0.0,
            verify=False,
        )
        case.validate_response(received, checks=CHECKS)

    ask()
