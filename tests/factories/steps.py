"""Requests to a provider and calls of tools: the same of a turn as of a job."""

from __future__ import annotations

import uuid
from typing import Generic

import factory

from tests.factories.rows import M, Now_, RowFactory, Trait, ending
from turns.digests import digest


class RequestedFactory(RowFactory[M], Generic[M]):
    """What lasts as long as a request, and ends with it."""

    class Meta:
        abstract = True

    class Params:
        completed = ending("completed")
        failed = ending("failed", "provider_unavailable")
        cancelled = ending("cancelled", "cancelled")
        interrupted = ending("interrupted", "runtime_lost")

    model = "scripted"


class AskingFactory(RequestedFactory[M], Generic[M]):
    """A request that is under way."""

    class Meta:
        abstract = True

    request_digest = digest("")
    request_bytes = 1


class CallingFactory(RowFactory[M], Generic[M]):
    """A call that a completed request asked for, and that has not started."""

    class Meta:
        abstract = True

    class Params:
        running = Trait(state="running", started_at=Now_)
        succeeded = Trait(
            state="succeeded", started_at=Now_, finished_at=Now_, result="found", result_bytes=5
        )
        failed = ending("failed", "tool_failed")
        cancelled = ending("cancelled", "cancelled")
        unavailable = ending("unavailable", "unknown_tool")
        interrupted = ending("interrupted", "outcome_unknown")

    call_id = factory.Sequence(lambda n: f"call-{n}")
    item_id = factory.Sequence(lambda n: f"item-{n}")
    name = "search_history"
    arguments = '{"query": "x"}'
    arguments_digest = digest('{"query":"x"}')
    invocation_key = factory.LazyFunction(uuid.uuid4)
