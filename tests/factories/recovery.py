"""People, the runtimes that work for them, and what is claimed by a runtime."""

from __future__ import annotations

import uuid
from typing import Any, Generic

import factory
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User

from recovery.fences import claimed_mark
from recovery.models import Runtime
from tests.factories.rows import M, Now_, RowFactory, Trait, after


class UserFactory(RowFactory[User]):
    class Meta:
        model = get_user_model()

    username = factory.Sequence(lambda n: f"person-{n}-{uuid.uuid4().hex[:6]}")


class RuntimeFactory(RowFactory[Runtime]):
    """A living runtime that only its lease, an hour, speaks for."""

    class Meta:
        model = Runtime

    class Params:
        stopped = Trait(stopped_at=Now_, stop_reason="runtime_stopped")
        lost = Trait(stopped_at=Now_, stop_reason="runtime_lost")
        expired = Trait(stopped_at=Now_, stop_reason="lease_expired")

    role = "worker"
    host_id = "test-host"
    host = "test"
    pid = 1
    boot_id = "test-boot"
    lease_expires_at = after(hours=1)


def _owner(row: Any) -> uuid.UUID:
    runtime: Runtime = row.runtime or RuntimeFactory.create(lost=row.lost)
    return runtime.pk


class ClaimableFactory(RowFactory[M], Generic[M]):
    """Something that one runtime at a time owns: `running=True` has been claimed once.

    `runtime` says by whom, `lost=True` by somebody who is dead.
    """

    class Meta:
        abstract = True

    class Params:
        runtime = None
        lost = False
        running = Trait(
            state="running",
            owner=factory.LazyAttribute(_owner),
            generation=1,
            claim_token=factory.LazyFunction(uuid.uuid4),
            write_mark=factory.LazyAttribute(lambda row: claimed_mark(row.generation)),
            attempts=1,
            claimed_at=Now_,
            deadline_at=after(minutes=10),
        )
        orphaned = Trait(running=True, lost=True)
        cancel_requested = Trait(running=True, cancel_requested_at=Now_)
        overdue = Trait(running=True, deadline_at=after(minutes=-1))
