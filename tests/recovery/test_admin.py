"""Admin is for looking, and for one verb."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from typing import Any, ClassVar

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.test import Client

from recovery import runner
from recovery.commands import RecoverCommand
from recovery.models import Pulse, RecoveryEvent, RecoveryFailure, ReleaseSwitch, Runtime
from tests.recovery.parcels import ParcelRecovery, parcel, parcel_tables
from tests.support.runtimes import runtime_row, watch_database

pytestmark = pytest.mark.django_db(transaction=True)


class RecoverParcels(RecoverCommand):
    kind: ClassVar[str] = "parcels"


LISTS = ("runtime", "pulse", "recoveryevent", "recoveryfailure", "releaseswitch")


@pytest.fixture
def rows() -> None:
    watch_database()
    runtime_row()
    RecoveryEvent.objects.create(
        kind="turns",
        row_id=1,
        cause="runtime_lost",
        action="interrupted",
        generation=1,
        error_code="runtime_lost",
    )
    RecoveryFailure.objects.create(kind="turns", row_id=2, failed_count=1)
    ReleaseSwitch.objects.create(kind="turns", state="draining")


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("name", LISTS)
def test_everything_is_listed_and_nothing_can_be_written(
    admin_client: Client, name: str
) -> None:
    model: Any = {
        "runtime": Runtime,
        "pulse": Pulse,
        "recoveryevent": RecoveryEvent,
        "recoveryfailure": RecoveryFailure,
        "releaseswitch": ReleaseSwitch,
    }[name]
    row = model.objects.get()
    base = f"/admin/recovery/{name}/"
    assert admin_client.get(base).status_code == 200
    assert admin_client.get(f"{base}{row.pk}/change/").status_code == 200
    assert admin_client.get(f"{base}add/").status_code == 403
    assert admin_client.post(f"{base}{row.pk}/change/", {}).status_code == 403
    assert admin_client.post(f"{base}{row.pk}/delete/", {"post": "yes"}).status_code == 403
    delete = {"action": "delete_selected", "_selected_action": str(row.pk), "post": "yes"}
    admin_client.post(base, delete)
    assert model.objects.count() == 1


@pytest.fixture
def recovery(monkeypatch: pytest.MonkeyPatch) -> Iterator[ParcelRecovery]:
    recovery = ParcelRecovery()
    monkeypatch.setattr(runner, "_registered", {"parcels": recovery})
    with parcel_tables():
        yield recovery


def run_recovery(client: Client) -> str:
    row = Runtime.objects.first()
    assert row is not None
    response = client.post(
        "/admin/recovery/runtime/",
        {"action": "run_recovery", "_selected_action": str(row.pk)},
        follow=True,
    )
    return response.content.decode()


@pytest.mark.usefixtures("recovery")
def test_the_action_does_what_the_sweep_does(admin_client: Client) -> None:
    watch_database()
    dead = runtime_row(lease_seconds=-1)
    orphan = parcel(owner=dead.pk)
    page = run_recovery(admin_client)
    orphan.refresh_from_db()
    dead.refresh_from_db()
    assert (orphan.state, dead.stop_reason) == ("interrupted", "lease_expired")
    assert "Parcels: 1 examined, 0 adopted, 1 interrupted" in page


@pytest.mark.usefixtures("recovery")
def test_the_action_says_what_it_did_in_the_words_of_the_command(admin_client: Client) -> None:
    watch_database()
    parcel(owner=runtime_row(lease_seconds=-1).pk)
    said = (
        "Parcels: 1 examined, 0 adopted, 1 interrupted, 0 dispatched again, "
        "0 locked by others, 0 failed"
    )
    assert said in run_recovery(admin_client)
    parcel(owner=runtime_row(lease_seconds=-1).pk)
    out = StringIO()
    call_command(RecoverParcels(stdout=out))
    assert said.lower() in out.getvalue()


@pytest.mark.usefixtures("recovery")
def test_the_action_needs_no_row_to_be_ticked(admin_client: Client) -> None:
    watch_database()
    orphan = parcel(owner=runtime_row(lease_seconds=-1).pk)
    page = admin_client.post(
        "/admin/recovery/recoveryfailure/",
        {"action": "run_recovery", "index": "0"},
        follow=True,
    )
    orphan.refresh_from_db()
    assert orphan.state == "interrupted"
    assert "Parcels: 1 examined" in page.content.decode()


@pytest.mark.usefixtures("recovery")
def test_the_action_is_for_those_who_were_given_it(client: Client) -> None:
    watch_database()
    dead = runtime_row(lease_seconds=-1)
    user = User.objects.create_user("looker", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_runtime"))
    client.force_login(user)
    run_recovery(client)
    dead.refresh_from_db()
    assert dead.stopped_at is None
    user.user_permissions.add(Permission.objects.get(codename="run_recovery"))
    run_recovery(client)
    dead.refresh_from_db()
    assert dead.stopped_at is not None
