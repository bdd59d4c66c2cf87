"""Each rule of the jobs' tables, broken by raw SQL: the database itself refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pgtrigger
import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import Model

from recovery.constraints import violated_constraint
from recovery.fences import claimed_mark
from tests import factories as make
from tests.support.rules import another, declared_rules, refusal_of, silence_other_triggers
from tests.work.test_models_children import CHILDREN
from work.models import JobReport, WorkJob, WorkProviderStep, WorkStep

pytestmark = pytest.mark.django_db


def queued() -> WorkJob:
    return make.WorkJobFactory.create()


def running() -> WorkJob:
    return make.WorkJobFactory.create(running=True)


def released() -> WorkJob:
    return make.WorkJobFactory.create(released=True)


def completed() -> WorkJob:
    return make.WorkJobFactory.create(completed=True)


def cancelling() -> WorkJob:
    return make.WorkJobFactory.create(cancel_requested=True)


def coding() -> WorkJob:
    return make.WorkJobFactory.create(coding=True)


def asking() -> WorkJob:
    return make.WorkProviderStepFactory.create().job


def calling() -> WorkJob:
    return make.WorkStepFactory.create().job


def in_its_workspace() -> WorkJob:
    return make.WorkJobFactory.create(running=True, base_commit="c0ffee", branch="a-branch")


def claimed_twice() -> WorkJob:
    return make.WorkJobFactory.create(running=True, generation=2)


def second_of_two_jobs() -> WorkJob:
    first = make.WorkJobFactory.create(client_key="same")
    return make.WorkJobFactory.create(conversation=first.conversation, person=first.person)


def step() -> Model:
    return make.WorkProviderStepFactory.create()


def ended_step() -> Model:
    return make.WorkProviderStepFactory.create(completed=True)


def second_of_two_steps() -> Model:
    first = make.WorkProviderStepFactory.create(completed=True)
    return make.WorkProviderStepFactory.create(job=first.job)


def tool() -> Model:
    return make.WorkStepFactory.create()


def running_tool() -> Model:
    return make.WorkStepFactory.create(running=True)


def adopted_tool() -> Model:
    return make.WorkStepFactory.create(job=claimed_twice())


def ended_tool() -> Model:
    return make.WorkStepFactory.create(succeeded=True)


def second_of_two_tools() -> Model:
    first = make.WorkStepFactory.create(call_id="same", invocation_key=KEY)
    return make.WorkStepFactory.create(job=first.job, provider_step=first.provider_step)


def report() -> Model:
    return make.JobReportFactory.create()


def report_beside_another_conversation() -> Model:
    made = make.JobReportFactory.create()
    make.MessageFactory.create()
    return made


def notice_beside_a_result() -> Model:
    first = make.JobReportFactory.create()
    return make.JobReportFactory.create(job=first.job, notice=True)


def link() -> Model:
    return make.JobReportMessageFactory.create()


def second_of_two_links() -> Model:
    make.JobReportMessageFactory.create()
    return make.JobReportMessageFactory.create()


def computer() -> Model:
    return make.ComputerFactory.create()


def second_of_two_computers() -> Model:
    first = make.ComputerFactory.create(name="same")
    return make.ComputerFactory.create(person=first.person)


def claim(generation: int = 1, **changes: str) -> str:
    """Return the assignments of a claim, with these changed."""
    return assigned(
        {
            "state": "'running'",
            "generation": str(generation),
            "write_mark": f"{generation}::bigint << 32",
            "attempts": "attempts + 1",
            "owner": "gen_random_uuid()",
            "claim_token": "gen_random_uuid()",
            "claimed_at": "now()",
            "deadline_at": "now()",
            **changes,
        }
    )


def release(**changes: str) -> str:
    """Return the assignments of the first release, with these changed."""
    return assigned(
        {
            "state": "'queued'",
            "generation": "2",
            "write_mark": "2::bigint << 32",
            "owner": "NULL",
            "claim_token": "NULL",
            **changes,
        }
    )


def assigned(values: dict[str, str]) -> str:
    return ", ".join(f"{column} = {value}" for column, value in values.items())


KEY: Final = "00000000-0000-4000-8000-000000000000"
END: Final = "finished_at = now()"
LATER: Final = "queue_deadline_at = queue_deadline_at + interval '1 s'"
CLAIMED: Final = (
    "owner = gen_random_uuid(), claim_token = gen_random_uuid(), claimed_at = now(), "
    "deadline_at = now()"
)
CODED: Final = f"{END}, error_code = 'runtime_lost'"
MARK_2: Final = "write_mark = 2::bigint << 32"
# what a second step of a job has of its own
OTHER_CALL: Final = {
    "sequence": "2", "call_id": "'another'", "invocation_key": "gen_random_uuid()",
}  # fmt: skip

# table, rule, a row, and what breaks the rule: assignments, or a whole statement
BREACHES: Final[list[tuple[str, str, Callable[[], Model], str]]] = [
    ("workjob", "moves", running, "state = 'odd'"),
    ("workjob", "ended_with_its_time", running, "state = 'completed'"),
    ("workjob", "ended_with_its_time", running, END),
    ("workjob", "error_code_is_honest", running, f"state = 'completed', {CODED}"),
    ("workjob", "error_code_is_honest", running, f"state = 'interrupted', {END}"),
    ("workjob", "error_code_is_honest", running, f"state = 'failed', {END}"),
    ("workjob", "error_code_is_honest", running, f"state = 'budget_exhausted', {END}"),
    ("workjob", "fence_presented", running, "write_mark = 1"),
    ("workjob", "running_is_owned", queued, claim(owner="NULL")),
    ("workjob", "running_is_owned", queued, claim(claim_token="NULL")),
    ("workjob", "running_is_owned", queued, claim(claimed_at="NULL")),
    ("workjob", "running_is_owned", queued, claim(deadline_at="NULL")),
    ("workjob", "queued_is_free", running, release(owner="owner")),
    ("workjob", "queued_is_free", running, release(claim_token="claim_token")),
    ("workjob", "session_bounded", running, "acp_session_id = repeat('x', 513)"),
    ("workjob", "releases_are_counted", running, "planned_releases = 1"),
    ("workjob", "one_per_client_key", second_of_two_jobs, another(
        WorkJob, client_key="'same'")),
    ("workjob", "kind_has_its_place", queued, another(WorkJob, host_id="'a-host'")),
    ("workjob", "kind_has_its_place", queued, another(WorkJob, kind="'coding'")),
    ("workjob", "kind_has_its_place", coding, another(WorkJob, host_id="''")),
    ("workjob", "kind_has_its_place", coding, another(WorkJob, cwd="''")),
    ("workjob", "clock_is_the_budgets", queued, another(WorkJob, wall_clock_seconds="601")),
    ("workjob", "clock_is_the_budgets", queued, another(WorkJob, budget="jsonb '{{}}'")),
    ("workjob", "texts_bounded", queued, another(WorkJob, goal="repeat('x', 2001)")),
    ("workjob", "texts_bounded", queued, another(WorkJob, context="repeat('x', 2001)")),
    ("workjob", "texts_bounded", queued, another(WorkJob, prompt="repeat('x', 8001)")),
    ("workjob", "texts_bounded", coding, another(WorkJob, cwd="repeat('x', 513)")),
    ("workjob", "snapshots_bounded", queued, another(
        WorkJob, authority="repeat('x', 33000)")),
    ("workjob", "snapshots_bounded", queued, another(WorkJob, budget="jsonb_build_object("
        "'wall_clock_seconds', 600, 'x', repeat('x', 5000))")),
    ("workjob", "authority_is_the_computers", coding, another(
        WorkJob, authority="jsonb_set(t.authority, '{{roots}}', '[\"/\"]')")),
    ("workjob", "authority_is_the_computers", coding, another(
        WorkJob, authority="jsonb_set(t.authority, '{{tier}}', '\"shell\"')")),
    ("workjob", "authority_is_the_computers", coding, another(
        WorkJob, authority="jsonb_set(t.authority, '{{cwd}}', '\"/\"')")),
    ("workjob", "authority_is_the_computers", coding, another(WorkJob, host_id="'another'")),
    ("workjob", "begins_queued", running, another(WorkJob)),
    ("workjob", "begins_queued", completed, another(WorkJob)),
    ("workjob", "begins_queued", released, another(WorkJob)),
    ("workjob", "begins_queued", queued, another(WorkJob, attempts="1")),
    ("workjob", "begins_queued", queued, another(WorkJob, dispatch_count="1")),
    ("workjob", "begins_queued", queued, another(WorkJob, deadline_at="now()")),
    ("workjob", "begins_queued", queued, another(WorkJob, branch="'main'")),
    ("workjob", "begins_queued", queued, another(WorkJob, base_commit="'c0ffee'")),
    ("workjob", "begins_queued", queued, another(WorkJob, acp_session_id="'another'")),
    ("workjob", "cancel_wins", cancelling, f"state = 'failed', {CODED}"),
    ("workjob", "cancel_wins", cancelling, f"state = 'completed', {END}"),
    ("workjob", "cancel_wins", running,
        f"state = 'interrupted', {CODED}, cancel_requested_at = now()"),
    ("workjob", "ends_whole", asking, f"state = 'completed', {END}"),
    ("workjob", "ends_whole", calling, f"state = 'failed', {CODED}"),
    ("workjob", "fence", running, "acp_cursor = 1, write_mark = write_mark"),
    ("workjob", "generation", claimed_twice, "generation = 1, write_mark = 1::bigint << 32"),
    ("workjob", "generation", running, "generation = 3, write_mark = 3::bigint << 32"),
    ("workjob", "generation", running, "owner = gen_random_uuid()"),
    ("workjob", "generation", running, "owner = NULL"),
    ("workjob", "generation", running, "state = 'queued', owner = NULL, claim_token = NULL"),
    ("workjob", "generation", running, f"state = 'failed', {CODED}, owner = NULL"),
    ("workjob", "moves", queued, f"state = 'completed', {END}"),
    ("workjob", "moves", queued, "state = 'running'"),
    ("workjob", "moves", running, "state = 'queued'"),
    ("workjob", "moves", running, f"generation = 2, {MARK_2}, attempts = 2"),
    ("workjob", "moves", running, f"generation = 2, {MARK_2}, "
        "owner = gen_random_uuid(), claim_token = gen_random_uuid()"),
    ("workjob", "moves", queued, "generation = 1, write_mark = 1::bigint << 32"),
    ("workjob", "ended_with_its_time", running, release(finished_at="now()")),
    ("workjob", "ended_with_its_time", queued, claim(finished_at="now()")),
    ("workjob", "end_is_final", completed, f"state = 'interrupted', {CODED}"),
    ("workjob", "end_is_final", completed, "dispatch_count = 1"),
    ("workjob", "dispatches_are_counted", queued, "dispatch_count = -1"),
    ("workjob", "dispatches_are_counted", running, "dispatch_count = -1"),
    ("workjob", "admission_is_immutable", running, "prompt = 'another'"),
    ("workjob", "deadline_is_fixed", running, release(deadline_at="NULL")),
    ("workjob", "deadline_is_fixed", released, claim(3)),
    ("workjob", "claim_keeps_its_times", running, "deadline_at = NULL"),
    ("workjob", "claim_keeps_its_times", running, "deadline_at = deadline_at + interval '1 s'"),
    ("workjob", "claim_keeps_its_times", running, "claimed_at = NULL"),
    ("workjob", "claim_keeps_its_times", queued, "deadline_at = now()"),
    ("workjob", "claim_is_counted", running, "attempts = 0"),
    ("workjob", "claim_is_counted", running, "attempts = 2"),
    ("workjob", "claim_is_counted", queued, claim(attempts="0")),
    ("workjob", "claim_is_counted", queued, claim(attempts="2")),
    ("workjob", "claim_is_counted", running, release(attempts="2")),
    ("workjob", "claim_keeps_its_token", running, "claim_token = gen_random_uuid()"),
    ("workjob", "claim_keeps_its_token", running, f"state = 'failed', {CODED}, "
        "claim_token = NULL"),
    ("workjob", "releases_are_counted", lambda: make.WorkJobFactory.create(
        running=True, planned_releases=1), "planned_releases = 0"),
    ("workjob", "releases_are_counted", lambda: make.WorkJobFactory.create(
        running=True, attempts=2), "planned_releases = 1"),
    ("workjob", "releases_are_counted", lambda: make.WorkJobFactory.create(
        running=True, attempts=3), release(planned_releases="2")),
    ("workjob", "releases_are_counted", queued, claim(planned_releases="1")),
    ("workjob", "checkpoint_is_the_owners", queued, "acp_session_id = 'session'"),
    ("workjob", "checkpoint_is_the_owners", released, "branch = 'another'"),
    ("workjob", "checkpoint_is_the_owners", completed, "base_commit = 'another'"),
    ("workjob", "checkpoint_is_the_owners", running,
        f"acp_cursor = 1, generation = 2, {MARK_2}"),
    ("workjob", "workspace_is_fixed", in_its_workspace, "branch = 'another'"),
    ("workjob", "workspace_is_fixed", in_its_workspace, "base_commit = 'badc0de'"),
    ("workjob", "workspace_is_fixed", in_its_workspace, "base_commit = '', branch = ''"),
    ("workjob", "queue_deadline_is_fixed", queued, LATER),
    ("workjob", "queue_deadline_is_fixed", running, LATER),
    ("workjob", "queue_deadline_is_fixed", queued, f"{LATER}, state = 'running', "
        f"generation = 1, write_mark = 1::bigint << 32, attempts = 1, {CLAIMED}"),
    ("workjob", "cancel_is_final", cancelling, "cancel_requested_at = NULL"),
    ("workjob", "claimed_on_its_host", coding, claim()),
    ("workproviderstep", "moves", step, "state = 'odd'"),
    ("workproviderstep", "moves", step, f"state = 'odd', {END}"),
    ("workproviderstep", "ended_with_its_time", step, END),
    ("workproviderstep", "ended_with_its_time", step, "state = 'completed'"),
    ("workproviderstep", "error_code_is_honest", step, f"state = 'failed', {END}"),
    ("workproviderstep", "response_id_bounded", step, "response_id = repeat('x', 513)"),
    ("workproviderstep", "usage_bounded", step, "usage = to_jsonb(repeat('x', 17000))"),
    ("workproviderstep", "text_bounded", step, "text = repeat('x', 65537)"),
    ("workproviderstep", "anomalies_counted", step, "anomaly_count = -1"),
    ("workproviderstep", "repeats_bounded", step, "repeats = array_fill(1, ARRAY[129])"),
    ("workproviderstep", "count_bounded", ended_step, another(
        WorkProviderStep, sequence="33")),
    ("workproviderstep", "count_bounded", ended_step, another(
        WorkProviderStep, sequence="-1")),
    ("workproviderstep", "bytes_counted", ended_step, another(
        WorkProviderStep, sequence="2", request_bytes="-1")),
    ("workproviderstep", "one_per_sequence", second_of_two_steps, "sequence = 1"),
    ("workproviderstep", "one_open_per_job", step, another(
        WorkProviderStep, sequence="2")),
    ("workproviderstep", "end_is_final", ended_step, f"state = 'interrupted', {CODED}"),
    ("workproviderstep", "end_is_final", ended_step, "text = 'late'"),
    ("workproviderstep", "identity_is_fixed", step, "generation = 2"),
    ("workstep", "moves", tool, "state = 'odd'"),
    ("workstep", "moves", running_tool, f"state = 'odd', {END}"),
    ("workstep", "moves", running_tool, "state = 'requested'"),
    ("workstep", "ended_with_its_time", running_tool, END),
    ("workstep", "ended_with_its_time", tool, "state = 'cancelled'"),
    ("workstep", "error_code_is_honest", tool, f"state = 'unavailable', {END}"),
    ("workstep", "running_was_started", tool, "state = 'running'"),
    ("workstep", "arguments_bounded", tool, another(
        WorkStep, arguments="repeat('x', 65537)", **OTHER_CALL)),
    ("workstep", "result_bounded", tool, "result = repeat('x', 65537)"),
    ("workstep", "result_bounded", tool, "result_bytes = -1"),
    ("workstep", "ids_bounded", tool, another(
        WorkStep, **{**OTHER_CALL, "name": "repeat('x', 129)"})),
    ("workstep", "ids_bounded", tool, another(
        WorkStep, **{**OTHER_CALL, "call_id": "repeat('x', 513)"})),
    ("workstep", "fence_presented", tool, "write_mark = 1"),
    ("workstep", "count_bounded", tool, another(
        WorkStep, **{**OTHER_CALL, "sequence": "129"})),
    ("workstep", "count_bounded", tool, another(
        WorkStep, **{**OTHER_CALL, "sequence": "-1"})),
    ("workstep", "one_per_call_id", second_of_two_tools, "call_id = 'same'"),
    ("workstep", "one_per_sequence", second_of_two_tools, "sequence = 1"),
    ("workstep", "invocation_key", second_of_two_tools, f"invocation_key = '{KEY}'"),
    ("workstep", "fence", tool, "result = 'x', write_mark = write_mark"),
    ("workstep", "generation", adopted_tool, "generation = 1, write_mark = 1::bigint << 32"),
    ("workstep", "generation", running_tool, f"generation = 2, {MARK_2}"),
    ("workstep", "moves", tool, f"state = 'succeeded', started_at = now(), {END}"),
    ("workstep", "end_is_final", ended_tool, "result = 'another outcome'"),
    ("workstep", "identity_is_fixed", tool, "arguments = '{{}}'"),
    ("jobreport", "kind_known", report, another(JobReport, kind="'odd'")),
    ("jobreport", "text_bounded", report, another(
        JobReport, kind="'notice'", text="repeat('x', 8001)")),
    ("jobreport", "text_bounded", report, another(
        JobReport, kind="'notice'", text="''")),
    ("jobreport", "one_per_kind", notice_beside_a_result, another(JobReport)),
    ("jobreport", "is_final", report, "text = 'Something else.'"),
    ("jobreportmessage", "identity_is_fixed", link, "message_id = message_id + 1"),
    ("jobreportmessage", "identity_is_fixed", link, "report_id = report_id + 1"),
    ("jobreportmessage", "in_its_conversation", report_beside_another_conversation,
        "INSERT INTO work_jobreportmessage (report_id, message_id) "
        "SELECT {pk}, max(id) FROM turns_message"),
    ("jobreportmessage", "report_id", second_of_two_links,
        "report_id = (SELECT min(report_id) FROM work_jobreportmessage)"),
    ("jobreportmessage", "message_id", second_of_two_links,
        "message_id = (SELECT min(message_id) FROM work_jobreportmessage)"),
    ("computer", "tier_known", computer, "tier = 'root'"),
    ("computer", "lists_bounded", computer, "roots = to_jsonb(repeat('x', 9000))"),
    ("computer", "lists_bounded", computer, "checks = to_jsonb(repeat('x', 5000))"),
    ("computer", "one_per_name", second_of_two_computers, "name = 'same'"),
    ("computer", "identity_is_fixed", computer, "host_id = 'another'"),
]  # fmt: skip
# What a new row may not be either, as what is written later may not.
NEW_ROWS: Final[list[tuple[str, str, Callable[[], Model], str]]] = [
    ("workjob", "state_known", queued, another(WorkJob, state="'odd'")),
    ("workjob", "ended_with_its_time", queued, another(WorkJob, finished_at="now()")),
    ("workjob", "error_code_is_honest", completed, another(WorkJob, error_code="'x'")),
    ("workjob", "fence_presented", queued, another(WorkJob, write_mark="1::bigint << 32")),
    ("workjob", "running_is_owned", running, another(WorkJob, owner="null")),
    ("workjob", "queued_is_free", queued, another(WorkJob, owner="gen_random_uuid()")),
    ("workjob", "session_bounded", queued, another(
        WorkJob, acp_session_id="repeat('x', 513)")),
    ("workjob", "releases_are_of_attempts", queued, another(WorkJob, planned_releases="1")),
    ("workproviderstep", "state_known", ended_step, another(
        WorkProviderStep, sequence="2", state="'odd'")),
    ("workproviderstep", "ended_with_its_time", ended_step, another(
        WorkProviderStep, sequence="2", finished_at="null")),
    ("workproviderstep", "error_code_is_honest", ended_step, another(
        WorkProviderStep, sequence="2", error_code="'x'")),
    ("workproviderstep", "response_id_bounded", ended_step, another(
        WorkProviderStep, sequence="2", response_id="repeat('x', 513)")),
    ("workproviderstep", "usage_bounded", ended_step, another(
        WorkProviderStep, sequence="2", usage="repeat('x', 17000)")),
    ("workproviderstep", "text_bounded", ended_step, another(
        WorkProviderStep, sequence="2", text="repeat('x', 65537)")),
    ("workproviderstep", "repeats_bounded", ended_step, another(
        WorkProviderStep, sequence="2", repeats="array_fill(1, ARRAY[129])")),
    ("workstep", "state_known", tool, another(WorkStep, state="'odd'", **OTHER_CALL)),
    ("workstep", "ended_with_its_time", tool, another(
        WorkStep, finished_at="now()", **OTHER_CALL)),
    ("workstep", "error_code_is_honest", ended_tool, another(
        WorkStep, error_code="'x'", **OTHER_CALL)),
    ("workstep", "running_was_started", tool, another(
        WorkStep, state="'running'", **OTHER_CALL)),
    ("workproviderstep", "anomalies_counted", ended_step, another(
        WorkProviderStep, sequence="2", anomaly_count="-1")),
    ("workstep", "result_bounded", tool, another(WorkStep, result_bytes="-1", **OTHER_CALL)),
    ("workstep", "result_bounded", tool, another(
        WorkStep, result="repeat('x', 65537)", **OTHER_CALL)),
    ("workstep", "fence_presented", tool, another(WorkStep, write_mark="1", **OTHER_CALL)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("table", "rule", "row", "breach"),
    BREACHES,
    ids=[f"{n}_{b[0]}_{b[1]}" for n, b in enumerate(BREACHES)],
)
def test_the_database_refuses(
    table: str, rule: str, row: Callable[[], Model], breach: str
) -> None:
    """behaviour O7, behaviour O11: a report is final, a queued job cannot complete, a prompt
    cannot be edited, time and roots are the budget's and the computer's"""
    pk = row().pk
    if breach.startswith("INSERT"):
        sql = breach.format(pk=pk)
    else:
        moved = table in {"workjob", "workstep"} and "write_mark" not in breach
        mark = "write_mark = write_mark + 1, " if moved else ""
        sql = f"UPDATE work_{table} SET {mark}{breach.format()} WHERE id = {pk}"
    silence_other_triggers(f"work_{table}", rule)
    # a unique column's index is named by Django, after its column
    assert refusal_of(sql).startswith(f"work_{table}_{rule}")


@pytest.mark.parametrize(
    ("table", "rule", "row", "insert"),
    NEW_ROWS,
    ids=[f"{table}_{rule}" for table, rule, _, _ in NEW_ROWS],
)
def test_a_row_is_not_born_as_it_may_not_become(
    table: str, rule: str, row: Callable[[], Model], insert: str
) -> None:
    sql = insert.format(pk=row().pk)
    silence_other_triggers(f"work_{table}", rule)
    assert refusal_of(sql) == f"work_{table}_{rule}"


def test_a_stale_save_of_a_whole_row_is_refused() -> None:
    """A save without `update_fields` brings a mark that fits its own, old generation."""
    stale = make.WorkJobFactory.create(released=True)
    WorkJob.objects.filter(pk=stale.pk).update(
        state="running", generation=3, write_mark=claimed_mark(3), attempts=2,
        owner=make.RuntimeFactory.create().pk, claim_token=KEY,
    )  # fmt: skip

    with pytest.raises(IntegrityError) as refused, transaction.atomic():
        stale.save()

    assert violated_constraint(refused.value) in {
        "work_workjob_generation", "work_workjob_moves", "work_workjob_claim_is_counted",
    }  # fmt: skip


def test_every_rule_of_the_tables_is_broken_here() -> None:
    broken = {f"work_{table}_{rule}" for table, rule, _, _ in [*BREACHES, *NEW_ROWS]}
    broken |= {f"work_{child}_child_fence" for child in CHILDREN}
    # for others to refer to, where two rows that break it break the primary key; and no rule
    broken |= {"work_computer_of_person", "work_workproviderstep_of_job"}
    broken |= {"work_jobreportmessage_takes_its_report_along"}
    # at the end of a transaction (test_models_belonging)
    broken |= {
        f"work_{child}_goes_with_its_parent" for child in ["workproviderstep", "workstep"]
    }
    # by another session, whose level is said before its first statement (test_isolation)
    broken |= {"work_workjob_ends_read_committed"}

    assert declared_rules("work") - broken == set()


def test_the_rules_of_a_row_cannot_be_switched_off_in_a_session() -> None:
    job = running()
    names = [
        f"{owner._meta.db_table}:{trigger.get_pgid(owner)}"
        for owner, trigger in pgtrigger.registered()
    ]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('pgtrigger.ignore', %s, true)", [f"{{{','.join(names)}}}"]
        )

    with pytest.raises(IntegrityError) as refused, transaction.atomic():
        connection.cursor().execute("UPDATE work_workjob SET write_mark = 1")

    assert violated_constraint(refused.value) == "work_workjob_fence_presented"
    job.refresh_from_db()
    assert job.write_mark == claimed_mark(1)
