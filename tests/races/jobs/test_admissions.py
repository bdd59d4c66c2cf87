"""Delegations that arrive at the same moment, on real sessions."""

from __future__ import annotations

from functools import partial

import pytest

from recovery.errors import ErrorCode, Refused
from recovery.switches import State, set_release
from tests import factories as make
from tests.factories import fence_of
from tests.support.rivals import Rival, gate
from turns.models import Conversation
from turns.transitions import delete_conversation
from work import bounds
from work.models import Computer, JobReport, WorkJob, WorkStep
from work.transitions import (
    Admission,
    JobAsk,
    admit_job,
    append_report,
    claim_job,
    finish_job,
    request_cancel,
)

pytestmark = pytest.mark.django_db(transaction=True)

PERSON = "SELECT FROM auth_user WHERE id = %s FOR NO KEY UPDATE"
CONVERSATION = "SELECT FROM turns_conversation WHERE id = %s FOR NO KEY UPDATE"
ASK = JobAsk("deep_work", "Find out.")


@pytest.fixture
def conversation() -> Conversation:
    return make.ConversationFactory.create()


def race(
    conversation: Conversation, database_url: str, *asks: tuple[JobAsk, str | None]
) -> list[Rival[Admission]]:
    """Return so many delegations, all held up before the first row is written."""
    with gate(database_url, PERSON, conversation.owner_id) as held:
        rivals = [
            Rival(
                partial(admit_job, conversation.owner_id, conversation.pk, ask, client_key=key)
            ).until_it_waits()
            for ask, key in asks
        ]
        held.open()
    return rivals


def test_a_double_click_is_one_job(conversation: Conversation, database_url: str) -> None:
    first, second = race(conversation, database_url, (ASK, "click"), (ASK, "click"))

    made = [first.result(), second.result()]
    assert sorted(admission.created for admission in made) == [False, True]
    assert made[0].job.pk == made[1].job.pk
    assert WorkJob.objects.count() == 1


def test_one_key_for_two_asks_is_one_job_and_a_conflict(
    conversation: Conversation, database_url: str
) -> None:
    other = JobAsk("deep_work", "Find out something else.")
    rivals = race(conversation, database_url, (ASK, "click"), (other, "click"))

    errors = [error for rival in rivals if (error := rival.error()) is not None]
    assert [isinstance(e, Refused) and e.code for e in errors] == [
        ErrorCode.CLIENT_KEY_CONFLICT
    ]
    assert WorkJob.objects.count() == 1


def test_the_limit_is_counted_under_the_persons_lock(
    conversation: Conversation, database_url: str
) -> None:
    """Two who ask at once for the last place, in two conversations: one gets it."""
    person = conversation.owner
    make.WorkJobFactory.create_batch(bounds.ACTIVE_JOBS_PER_OWNER - 1, person=person)
    elsewhere = make.ConversationFactory.create(owner=person)
    with gate(database_url, PERSON, person.pk) as held:
        rivals = [
            Rival(partial(admit_job, person.pk, pk, ASK)).until_it_waits()
            for pk in (conversation.pk, elsewhere.pk)
        ]
        held.open()

    errors = [error for rival in rivals if (error := rival.error()) is not None]
    assert [isinstance(e, Refused) and e.code for e in errors] == [ErrorCode.JOB_LIMIT_REACHED]
    assert WorkJob.objects.open().count() == bounds.ACTIVE_JOBS_PER_OWNER


def test_a_computer_that_changes_meanwhile_is_taken_as_it_is_then(
    conversation: Conversation, database_url: str
) -> None:
    """The authority is what the row says when the job is stored, not when it was asked for."""
    computer = make.ComputerFactory.create(person=conversation.owner)
    ask = JobAsk("coding", "Fix it.", computer_id=computer.pk)
    with gate(
        database_url, "UPDATE work_computer SET tier = 'probe' WHERE id = %s", computer.pk
    ) as held:
        rival = Rival(partial(admit_job, conversation.owner_id, conversation.pk, ask))
        rival.until_it_waits()
        held.commit()

    assert rival.result().job.authority["tier"] == "probe"


def test_a_computer_revoked_meanwhile_is_not_found(
    conversation: Conversation, database_url: str
) -> None:
    computer = make.ComputerFactory.create(person=conversation.owner)
    ask = JobAsk("coding", "Fix it.", computer_id=computer.pk)
    with gate(
        database_url, "UPDATE work_computer SET revoked_at = now() WHERE id = %s", computer.pk
    ) as held:
        rival = Rival(partial(admit_job, conversation.owner_id, conversation.pk, ask))
        rival.until_it_waits()
        held.commit()

    error = rival.error()
    assert isinstance(error, Refused)
    assert error.code == ErrorCode.NOT_FOUND
    assert Computer.objects.filter(revoked_at=None).count() == 0


def test_a_pause_waits_for_an_admission_and_stops_the_next(
    conversation: Conversation, database_url: str
) -> None:
    insert = "LOCK TABLE work_workjob IN SHARE MODE"
    with gate(database_url, insert) as held:
        first = Rival(partial(admit_job, conversation.owner_id, conversation.pk, ASK))
        first.until_it_waits()
        pause = Rival(partial(set_release, "work", State.DRAINING)).until_it_waits()
        assert pause.waits_for(first.pid)
        held.open()

    assert first.result().created
    assert pause.result() == State.OPEN
    with pytest.raises(Refused, match="paused"):
        admit_job(conversation.owner_id, conversation.pk, ASK)


@pytest.mark.parametrize("write", ["claim", "finish", "cancel", "report"])
def test_removing_a_conversation_and_a_write_to_its_job_do_not_both_win(
    database_url: str, write: str
) -> None:
    """The job is gone with everything it said, and its worker stops."""
    job = make.WorkJobFactory.create(running=write != "claim")
    owner = make.RuntimeFactory.create().pk
    if write != "claim":
        fence = fence_of(job)
        make.WorkStepFactory.create(job=job)
        append_report(fence, "Found it.")
    writes = {
        "claim": lambda: claim_job(job.pk, owner=owner),
        "finish": lambda: finish_job(fence, WorkJob.State.FAILED),
        "cancel": lambda: request_cancel(job.person_id, job.pk),
        "report": lambda: append_report(fence, "Found it."),
    }
    hold = "SELECT FROM work_workjob WHERE id = %s FOR UPDATE"
    with gate(database_url, hold, job.pk) as held:
        removed = Rival(partial(delete_conversation, job.person_id, job.conversation_id))
        removed.until_it_waits()
        late = Rival(writes[write]).until_it_waits()
        held.open()

    assert removed.error() is None
    if write == "claim":
        assert late.result() is None
    else:
        assert late.error() is not None
    for model in (WorkJob, WorkStep, JobReport):
        assert not model._default_manager.exists()
