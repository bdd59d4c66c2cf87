"""What the database refuses, whoever asks: each rule of an owned row and of its children."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.db import IntegrityError, connection, transaction
from psycopg import errors

from recovery import fences
from recovery.database_errors import database_cause
from recovery.fences import Fence
from recovery.judges import judges
from recovery.triggers import changed
from tests.recovery.parcels import Label, Parcel, parcel, parcel_tables
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def parcels() -> Iterator[None]:
    with parcel_tables():
        yield


def refused(constraint: str, sql: str, *values: Any) -> None:
    """Assert that `sql` fails as a violation of `constraint`, and of nothing else."""
    with pytest.raises(IntegrityError) as caught, connection.cursor() as cursor:
        cursor.execute(sql, values)
    cause = database_cause(caught.value)
    assert cause is not None
    assert cause.diag.constraint_name == constraint


def run(sql: str, *values: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)


COUNTED = f"write_mark = {fences.NEXT_MARK_SQL}"
CLAIM = (
    "UPDATE parcels_parcel SET generation = generation + 1, owner = gen_random_uuid(), "
    "state = 'running', write_mark = (generation + 1)::bigint << 32 WHERE id = %s"
)
END = (
    f"UPDATE parcels_parcel SET state = 'interrupted', error_code = 'runtime_lost', "
    f"finished_at = now(), {COUNTED} WHERE id = %s"
)


def test_a_careless_writer_is_stopped() -> None:
    row = parcel()
    refused(
        "parcels_parcel_fence", "UPDATE parcels_parcel SET owner = NULL WHERE id = %s", row.pk
    )


def test_a_stale_writer_is_stopped() -> None:
    row = parcel()
    run(CLAIM, row.pk)
    refused(
        "parcels_parcel_fence_presented",
        "UPDATE parcels_parcel SET owner = owner, write_mark = %s WHERE id = %s",
        (1 << 32) | 7,
        row.pk,
    )


def test_a_stale_writer_that_waited_behind_the_claim_is_stopped(database_url: str) -> None:
    row = parcel()
    stale = psycopg.connect(database_url, autocommit=True)
    with psycopg.connect(database_url) as claimer, ThreadPoolExecutor(1) as pool:
        claimer.execute(CLAIM, [row.pk])
        waiting = pool.submit(
            stale.execute,
            "UPDATE parcels_parcel SET dispatch_count = 9, write_mark = %s WHERE id = %s",
            [(1 << 32) | 1, row.pk],
        )
        wait_until(lambda: _is_blocked(stale), "the stale writer waits for the row")
        claimer.commit()
        with pytest.raises(errors.CheckViolation):
            waiting.result()
    stale.close()
    row.refresh_from_db()
    assert (row.generation, row.dispatch_count) == (2, 0)


def _is_blocked(other: psycopg.Connection[Any]) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [other.info.backend_pid])
        return bool(cursor.fetchone()[0])


def test_a_stale_save_of_the_whole_row_is_stopped() -> None:
    """It carries its own old generation and a mark that fits it."""
    row = parcel()
    run(CLAIM, row.pk)
    with pytest.raises(IntegrityError) as caught:
        row.save()
    assert "parcels_parcel_generation" in str(caught.value)


@pytest.mark.parametrize("step", [-1, 2])
def test_a_generation_never_falls_nor_jumps(step: int) -> None:
    row = parcel()
    refused(
        "parcels_parcel_generation",
        "UPDATE parcels_parcel SET generation = %s, write_mark = %s::bigint << 32 "
        "WHERE id = %s",
        1 + step,
        1 + step,
        row.pk,
    )


def test_a_new_owner_needs_a_new_generation() -> None:
    row = parcel()
    refused(
        "parcels_parcel_generation",
        f"UPDATE parcels_parcel SET owner = gen_random_uuid(), {COUNTED} WHERE id = %s",
        row.pk,
    )
    run(f"UPDATE parcels_parcel SET owner = NULL, {COUNTED} WHERE id = %s", row.pk)
    run(CLAIM, row.pk)


def test_only_listed_moves_are_made() -> None:
    row = parcel()
    refused(
        "parcels_parcel_moves",
        f"UPDATE parcels_parcel SET state = 'queued', {COUNTED} WHERE id = %s",
        row.pk,
    )


def test_an_end_is_final() -> None:
    row = parcel()
    run(END, row.pk)
    refused(
        "parcels_parcel_end_is_final",
        f"UPDATE parcels_parcel SET dispatch_count = 1, {COUNTED} WHERE id = %s",
        row.pk,
    )


def test_what_was_admitted_never_changes() -> None:
    row = parcel()
    refused(
        "parcels_parcel_admission_is_immutable",
        f"UPDATE parcels_parcel SET address = 'elsewhere', {COUNTED} WHERE id = %s",
        row.pk,
    )


def test_a_state_is_known() -> None:
    row = parcel(state="queued")
    run("ALTER TABLE parcels_parcel DISABLE TRIGGER USER")
    refused(
        "parcels_parcel_state_known",
        "UPDATE parcels_parcel SET state = 'elsewhere' WHERE id = %s",
        row.pk,
    )


def test_a_row_has_an_end_time_if_and_only_if_it_ended() -> None:
    row = parcel()
    refused(
        "parcels_parcel_ended_with_its_time",
        f"UPDATE parcels_parcel SET finished_at = now(), {COUNTED} WHERE id = %s",
        row.pk,
    )
    refused(
        "parcels_parcel_ended_with_its_time",
        "UPDATE parcels_parcel SET state = 'interrupted', error_code = 'runtime_lost', "
        f"{COUNTED} WHERE id = %s",
        row.pk,
    )


def test_an_error_code_is_honest() -> None:
    row = parcel()
    for state, code in (("completed", "runtime_lost"), ("interrupted", "")):
        refused(
            "parcels_parcel_error_code_is_honest",
            "UPDATE parcels_parcel SET state = %s, error_code = %s, finished_at = now(), "
            f"{COUNTED} WHERE id = %s",
            state,
            code,
            row.pk,
        )


ADD_LABEL = (
    "INSERT INTO parcels_label (parcel_id, generation, state, text) VALUES (%s, %s, 'open', '')"
)


ADD_LABELS = (
    "INSERT INTO parcels_label (parcel_id, generation, state, text) "
    "SELECT id, generation, 'open', '' "
    "FROM unnest(%s::bigint[], %s::int[]) AS asked (id, generation)"
)


def test_a_child_is_born_only_under_an_open_parent_of_its_generation() -> None:
    running, queued, ended = parcel(), parcel(state="queued"), parcel()
    run(END, ended.pk)
    run(ADD_LABEL, running.pk, 1)
    for pk, generation in ((running.pk, 0), (running.pk, 2), (queued.pk, 0), (ended.pk, 1)):
        refused("parcels_label_child_fence", ADD_LABEL, pk, generation)


def test_one_stale_child_among_many_stops_the_statement() -> None:
    running, ended = parcel(labels=0), parcel(labels=0)
    run(END, ended.pk)
    refused(
        "parcels_label_child_fence",
        ADD_LABELS,
        [running.pk, ended.pk],
        [1, 1],
    )
    assert Label.objects.count() == 0


def test_a_child_carries_the_generation_of_its_own_parent_and_not_of_another() -> None:
    first, second = parcel(labels=0), parcel(labels=0)
    run(CLAIM, second.pk)
    refused("parcels_label_child_fence", ADD_LABELS, [first.pk, second.pk], [2, 1])
    refused("parcels_label_child_fence", ADD_LABELS, [first.pk, second.pk, first.pk], [1, 2, 2])
    run(ADD_LABELS, [first.pk, second.pk, first.pk], [1, 2, 1])
    assert Label.objects.count() == 3


def test_a_child_inserted_while_recovery_closes_its_parent_is_refused(
    database_url: str,
) -> None:
    row = parcel(labels=0)
    writer = psycopg.connect(database_url, autocommit=True)
    with psycopg.connect(database_url) as closing, ThreadPoolExecutor(1) as pool:
        closing.execute(END, [row.pk])
        waiting = pool.submit(writer.execute, ADD_LABEL, [row.pk, 1])
        wait_until(lambda: _is_blocked(writer), "the insert waits for its parent")
        closing.commit()
        with pytest.raises(errors.CheckViolation):
            waiting.result()
    writer.close()
    assert Label.objects.count() == 0


def test_a_child_inserted_while_its_parent_is_claimed_is_refused(database_url: str) -> None:
    row = parcel(labels=0)
    writer = psycopg.connect(database_url, autocommit=True)
    with psycopg.connect(database_url) as claimer, ThreadPoolExecutor(1) as pool:
        claimer.execute(CLAIM, [row.pk])
        waiting = pool.submit(writer.execute, ADD_LABEL, [row.pk, 1])
        wait_until(lambda: _is_blocked(writer), "the insert waits for its parent")
        claimer.commit()
        with pytest.raises(errors.CheckViolation):
            waiting.result()
    writer.close()
    assert Label.objects.count() == 0


def test_a_child_inserted_while_its_owner_moves_the_parent_is_taken(database_url: str) -> None:
    row = parcel(labels=0)
    writer = psycopg.connect(database_url, autocommit=True)
    with psycopg.connect(database_url) as owner, ThreadPoolExecutor(1) as pool:
        owner.execute(
            f"UPDATE parcels_parcel SET dispatch_count = 1, {COUNTED} WHERE id = %s", [row.pk]
        )
        waiting = pool.submit(writer.execute, ADD_LABEL, [row.pk, 1])
        wait_until(lambda: _is_blocked(writer), "the insert waits for its parent")
        owner.commit()
        waiting.result()
    writer.close()
    assert Label.objects.count() == 1


def test_a_child_of_an_older_generation_waits_for_nobody(database_url: str) -> None:
    row = parcel(labels=0)
    run(CLAIM, row.pk)
    with psycopg.connect(database_url) as holder:
        holder.execute("SELECT FROM parcels_parcel WHERE id = %s FOR NO KEY UPDATE", [row.pk])
        run("SET lock_timeout = '1s'")
        refused("parcels_label_child_fence", ADD_LABEL, row.pk, 1)
        run("RESET lock_timeout")


def test_the_parents_of_many_children_are_locked_in_the_order_of_their_ids(
    database_url: str,
) -> None:
    low, held, high = (parcel(labels=0).pk for _ in range(3))
    writer = psycopg.connect(database_url, autocommit=True)
    with psycopg.connect(database_url) as holder, ThreadPoolExecutor(1) as pool:
        holder.execute("SELECT FROM parcels_parcel WHERE id = %s FOR UPDATE", [held])
        waiting = pool.submit(writer.execute, ADD_LABELS, [[high, held, low], [1, 1, 1]])
        wait_until(lambda: _is_blocked(writer), "the insert waits for the parent in the middle")
        free = Parcel.objects.select_for_update(no_key=True, skip_locked=True)
        with transaction.atomic():
            # a key is shared by the foreign keys of the new rows, so this is of the fence
            assert [row.pk for row in free.order_by("pk")] == [high]
        holder.commit()
        waiting.result()
    writer.close()
    assert Label.objects.count() == 3


def test_recovery_waits_for_a_child_in_flight_and_sees_it(database_url: str) -> None:
    row = parcel(labels=0)
    closing = psycopg.connect(database_url)
    with psycopg.connect(database_url) as writer, ThreadPoolExecutor(1) as pool:
        writer.execute(ADD_LABEL, [row.pk, 1])
        waiting = pool.submit(closing.execute, END, [row.pk])
        wait_until(lambda: _is_blocked(closing), "the closing waits for the child")
        writer.commit()
        waiting.result()
        seen = closing.execute("SELECT count(*) FROM parcels_label").fetchone()
        assert seen == (1,)
    closing.close()


def test_an_update_of_a_child_waits_for_no_parent(database_url: str) -> None:
    row = parcel()
    with psycopg.connect(database_url) as holder:
        holder.execute("SELECT FROM parcels_parcel WHERE id = %s FOR NO KEY UPDATE", [row.pk])
        run("SET lock_timeout = '1s'")
        run("UPDATE parcels_label SET state = 'done', finished_at = now()")
        run("RESET lock_timeout")


def test_a_child_makes_only_listed_moves_and_its_end_is_final() -> None:
    parcel(labels=1)
    run("UPDATE parcels_label SET state = 'done', finished_at = now()")
    refused("parcels_label_end_is_final", "UPDATE parcels_label SET finished_at = now()")


def test_a_move_of_a_child_that_is_not_listed_is_refused() -> None:
    parcel(labels=1)
    run("ALTER TABLE parcels_label DISABLE TRIGGER ALL")
    run("UPDATE parcels_label SET state = 'done', finished_at = now()")
    run("ALTER TABLE parcels_label ENABLE TRIGGER ALL")
    run("ALTER TABLE parcels_label DISABLE TRIGGER " + _trigger("end_is_final"))
    refused(
        "parcels_label_moves", "UPDATE parcels_label SET state = 'open', finished_at = NULL"
    )


def _trigger(rule: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT tgname FROM pg_trigger WHERE tgrelid = 'parcels_label'::regclass "
            "AND tgname LIKE %s",
            [f"%{rule}%"],
        )
        return str(cursor.fetchone()[0])


def test_the_identity_of_a_child_never_changes() -> None:
    parcel(labels=1)
    refused("parcels_label_identity_is_fixed", "UPDATE parcels_label SET text = 'other'")


def test_a_fence_marks_its_writes_and_counts_beside_others() -> None:
    row = parcel()
    fence = Fence(row.pk, 1, uuid4())
    Parcel.objects.filter(pk=row.pk).update(dispatch_count=1, write_mark=fence.next_mark())
    Parcel.objects.filter(pk=row.pk).update(dispatch_count=2, write_mark=fences.marked_by_row())
    Parcel.objects.filter(pk=row.pk).update(dispatch_count=3, write_mark=fence.next_mark())
    row.refresh_from_db()
    assert (row.dispatch_count, row.write_mark) == (3, (1 << 32) | 3)


def test_a_stale_fence_marks_nothing() -> None:
    row = parcel()
    fence = Fence(row.pk, 1, uuid4())
    run(CLAIM, row.pk)
    with pytest.raises(IntegrityError):
        Parcel.objects.filter(pk=row.pk).update(dispatch_count=1, write_mark=fence.next_mark())


def test_what_is_judged_in_a_new_row_alone_may_not_change_later() -> None:
    fresh = {"address_bounded": "octet_length(NEW.address) > 9"}
    kept = {"address_is_fixed": changed(["address"])}

    begins = judges("parcels_parcel", fresh=fresh, moved={}, kept=kept, of=["address"])[1]
    assert begins.rules == ("address_bounded",)
    with pytest.raises(AssertionError, match="address"):
        judges("parcels_parcel", fresh=fresh, moved={}, kept={}, of=["owner"])
