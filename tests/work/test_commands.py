"""The commands an operator runs for jobs: their words, their shapes, their exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connection
from pytest_django.fixtures import Settings

from recovery.models import Pulse, RecoveryEvent, ReleaseSwitch
from recovery.tasks import sweep
from tests import factories as make
from tests.support.processes import ROOT
from tests.support.runtimes import age, watch_database
from work import bounds
from work.models import Computer, JobReport, WorkJob, WorkProviderStep, WorkStep

pytestmark = pytest.mark.django_db(transaction=True)


SECRET = "a very private sentence"


def output_of(*arguments: str) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def refusal(*arguments: str) -> str:
    with pytest.raises(CommandError) as refused:
        output_of(*arguments)
    assert refused.value.returncode == 2
    return str(refused.value)


@pytest.fixture
def ada() -> str:
    return make.UserFactory.create(username="ada").username


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path.resolve())


def test_a_computer_is_added_listed_changed_and_revoked(ada: str, root: str) -> None:
    adding = ("add_computer", ada, "laptop", "--root", root, "--check", "test=make 'a b'")
    assert output_of(*adding) == "Added: laptop: curated, 1 root, 1 check.\n"
    assert output_of(*adding) == "It was there already: laptop: curated, 1 root, 1 check.\n"
    assert output_of("computers", ada) == (
        "ada  laptop  curated  here\n"
        f"    root   {root}\n"
        "    check  test: make 'a b'\n"
    )  # fmt: skip

    changing = ("change_computer", ada, "laptop", "--tier", "probe", "--no-checks")
    assert output_of(*changing) == "Changed: laptop: probe, 1 root, 0 checks.\n"
    assert output_of(*changing) == "It was so already: laptop: probe, 1 root, 0 checks.\n"

    assert output_of("revoke_computer", ada, "laptop") == "Revoked: laptop.\n"
    assert output_of("computers", ada) == "There is none.\n"
    assert output_of("computers", "--revoked").startswith("ada  laptop  probe  here  revoked\n")


@pytest.mark.parametrize(
    ("count", "left"), [(1, "1 of its jobs has"), (2, "2 of its jobs have")]
)
def test_a_revoked_computer_is_said_to_have_jobs_left(ada: str, count: int, left: str) -> None:
    owner = get_user_model().objects.get(username=ada)
    computer = make.ComputerFactory.create(person=owner, name="laptop")
    for _ in range(count):
        make.WorkJobFactory.create(person=owner, coding=True, computer=computer)
    said = output_of("revoke_computer", ada, "laptop")
    assert said == f"Revoked: laptop.\n{left} not ended.\n"


def test_a_computer_of_another_host_is_listed_as_elsewhere(ada: str, root: str) -> None:
    output_of("add_computer", ada, "laptop", "--root", root)
    there = Computer.objects.get()
    there.pk, there.name, there.host_id = None, "server", "another"
    there.save()
    assert "ada  server  curated  elsewhere\n" in output_of("computers")


def test_a_refusal_says_what_is_wrong_with_which_value_and_its_code(
    ada: str, root: str
) -> None:
    adding = ("add_computer", ada, "laptop", "--root", root)
    assert refusal("add_computer", ada, "laptop", "--root", root, "--root", "here") == (
        "--root here: A root is the absolute path of a directory that is here, without links "
        "in it. (invalid_root)"
    )
    assert refusal(*adding, "--check", "test").startswith("--check test: ")
    assert "(invalid_check)" in refusal(*adding, "--check", "=true")
    assert "No closing quotation" in refusal(*adding, "--check", "test='")
    assert "(invalid_request)" in refusal("add_computer", ada, " ", "--root", root)
    assert not Computer.objects.exists()


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 200])
def test_a_name_that_is_none_is_said_to_be_so(ada: str, root: str, name: str) -> None:
    said = "NAME: it is one line of 1 to 100 printable characters (invalid_request)"
    assert refusal("add_computer", ada, name, "--root", root) == said
    assert refusal("change_computer", ada, name, "--tier", "probe") == said
    assert refusal("revoke_computer", ada, name) == said


def test_a_check_is_given_once(ada: str, root: str) -> None:
    twice = ("--check", "test=true", "--check", "test=false")
    said = "--check test: it is given twice (invalid_check)"
    assert refusal("add_computer", ada, "laptop", "--root", root, *twice) == said
    output_of("add_computer", ada, "laptop", "--root", root)
    assert refusal("change_computer", ada, "laptop", *twice) == said


def test_a_root_in_the_installations_directory_is_refused(
    ada: str, root: str, settings: Settings
) -> None:
    home = Path(root) / "home"
    (home / "worktrees").mkdir(parents=True)
    (Path(root) / "link").symlink_to(home)
    settings.HOLDFAST_HOME = Path(root) / "link"
    (Path(root) / "other").mkdir()
    output_of("add_computer", ada, "laptop", "--root", str(Path(root) / "other"))
    for inside in (home, home / "worktrees"):
        said = (
            f"--root {inside}: it lies in HOLDFAST_HOME ({home}), where no job works "
            "(invalid_root)"
        )
        assert refusal("add_computer", ada, "new", "--root", str(inside)) == said
        assert refusal("change_computer", ada, "laptop", "--root", str(inside)) == said
    assert Computer.objects.get().roots == [str(Path(root) / "other")]


def test_a_root_around_the_installations_directory_is_taken_with_a_warning(
    ada: str, root: str, settings: Settings
) -> None:
    settings.HOLDFAST_HOME = home = Path(root) / "home"
    for name, around in (("laptop", root), ("all", "/")):
        err = StringIO()
        call_command("add_computer", ada, name, "--root", around, stdout=StringIO(), stderr=err)
        assert err.getvalue() == (
            f"--root {around} holds HOLDFAST_HOME ({home}): no job works there, and checks and "
            "commands cannot read it.\n"
        )
    (Path(root) / "home-2").mkdir()
    err = StringIO()
    beside = ("--root", f"{root}/home-2")
    call_command("change_computer", ada, "laptop", *beside, stdout=StringIO(), stderr=err)
    assert err.getvalue() == ""


def test_a_computer_that_is_not_there_is_not_changed(ada: str, root: str) -> None:
    missing = "There is nothing here. (not_found)"
    assert refusal("revoke_computer", ada, "laptop") == missing
    assert refusal("change_computer", ada, "laptop", "--tier", "shell") == missing
    output_of("add_computer", ada, "laptop", "--root", root)
    make.UserFactory.create(username="eve")
    assert refusal("revoke_computer", "eve", "laptop") == missing


def test_a_revoked_computer_is_said_to_be_revoked(ada: str, root: str) -> None:
    output_of("add_computer", ada, "laptop", "--root", root)
    output_of("revoke_computer", ada, "laptop")
    said = "This computer is revoked already. (not_found)"
    assert refusal("revoke_computer", ada, "laptop") == said
    assert refusal("change_computer", ada, "laptop", "--tier", "shell") == said
    make.UserFactory.create(username="eve")
    assert refusal("revoke_computer", "eve", "laptop") == "There is nothing here. (not_found)"
    output_of("add_computer", ada, "laptop", "--root", root)
    assert output_of("revoke_computer", ada, "laptop") == "Revoked: laptop.\n"


def test_a_change_says_what_is_to_change(ada: str, root: str) -> None:
    output_of("add_computer", ada, "laptop", "--root", root)
    assert refusal("change_computer", ada, "laptop") == "say what is to change"
    both = ("--check", "test=true", "--no-checks")
    assert "one of them" in refusal("change_computer", ada, "laptop", *both)


def test_the_ninth_computer_and_a_name_that_is_taken_are_refused(ada: str, root: str) -> None:
    for number in range(bounds.COMPUTERS_PER_OWNER):
        output_of("add_computer", ada, f"computer-{number}", "--root", root)
    assert "(computer_limit_reached)" in refusal("add_computer", ada, "x", "--root", root)
    taken = ("add_computer", ada, "computer-0", "--root", root, "--tier", "shell")
    assert "(computer_name_taken)" in refusal(*taken)


@pytest.mark.parametrize(
    "arguments",
    [
        ("add_computer", "nobody", "laptop", "--root", "/"),
        ("change_computer", "nobody", "laptop", "--tier", "probe"),
        ("revoke_computer", "nobody", "laptop"),
        ("computers", "nobody"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_nobody_has_no_computers(arguments: tuple[str, ...]) -> None:
    assert refusal(*arguments) == "there is no such user"


def recover(*options: str) -> str:
    watch_database()
    return output_of("recover_work", *options)


def exit_status(*options: str) -> int:
    with pytest.raises(SystemExit) as left:
        recover(*options)
    assert isinstance(left.value.code, int)
    return left.value.code


def every_row() -> list[tuple[str, ...]]:
    """Return each row of jobs and all they consist of, with the transaction that wrote it."""
    rows: list[tuple[str, ...]] = []
    models = (WorkJob, WorkProviderStep, WorkStep, JobReport, RecoveryEvent)
    with connection.cursor() as cursor:
        for model in models:
            table = model._meta.db_table
            cursor.execute(f"SELECT t.xmin::text, t::text FROM {table} t ORDER BY t.id")
            rows += cursor.fetchall()
    return rows


def test_recover_work_tells_its_report_as_one_json_object() -> None:
    released = make.WorkJobFactory.create(orphaned=True)
    ended = make.WorkJobFactory.create(orphaned=True, attempts=4)
    late = make.WorkJobFactory.create(queue_deadline_at="2000-01-01T00:00Z")

    report = json.loads(recover("--json"))

    assert report.pop("duration_ms") >= 0
    rows = {row.pop("id"): row for row in report.pop("rows")}
    assert report == {
        "kind": "work",
        "examined": 3,
        "adopted": 1,
        "interrupted": 2,
        "redispatched": 0,
        "skipped": 0,
        "failed": 0,
    }
    assert rows == {
        str(released.pk): {"cause": "runtime_lost", "action": "adopted", "error_code": ""},
        str(ended.pk): {
            "cause": "runtime_lost",
            "action": "interrupted",
            "error_code": "adoption_attempts_exhausted",
        },
        str(late.pk): {
            "cause": "never_started",
            "action": "interrupted",
            "error_code": "never_started",
        },
    }


def test_recover_work_twice_changes_nothing_more() -> None:
    make.WorkJobFactory.create(orphaned=True)
    make.WorkJobFactory.create(overdue=True)
    make.WorkJobFactory.create(orphaned=True, attempts=4)
    recover()
    before = every_row()

    assert json.loads(recover("--json"))["examined"] == 0
    assert every_row() == before


def test_a_dry_run_shows_what_would_be_done_and_changes_nothing() -> None:
    released = make.WorkJobFactory.create(orphaned=True)
    ended = make.WorkJobFactory.create(orphaned=True, attempts=4)
    waiting = make.WorkJobFactory.create(next_dispatch_at="2000-01-01T00:00Z")
    before = every_row()

    *lines, sentence = recover("--dry-run").splitlines()

    assert sentence == "work: 3 would be taken up; nothing was changed."
    assert {tuple(line.split()) for line in lines} == {
        (str(released.pk), "runtime_lost", "adopted", "-"),
        (str(ended.pk), "runtime_lost", "interrupted", "adoption_attempts_exhausted"),
        (str(waiting.pk), "never_started", "redispatched", "-"),
    }
    assert every_row() == before


def test_limit_bounds_what_is_recovered() -> None:
    make.WorkJobFactory.create_batch(3, orphaned=True)
    assert json.loads(recover("--json", "--limit", "2"))["adopted"] == 2
    assert json.loads(recover("--json"))["adopted"] == 1


def test_recover_work_exits_1_when_a_job_was_not_settled(database_url: str) -> None:
    job = make.WorkJobFactory.create(orphaned=True)
    with psycopg.connect(database_url) as other:
        other.execute("SELECT FROM work_workjob WHERE id = %s FOR UPDATE", [job.pk])
        assert exit_status() == 1
    assert "1 adopted" in recover()


def test_recover_work_exits_2_on_wrong_usage(process_environment: dict[str, str]) -> None:
    assert "--limit" in refusal("recover_work", "--limit=0")
    for wrong, status in (("--no-such", 2), ("--limit=0", 2), ("--json", 0)):
        done = manage(process_environment, "recover_work", wrong)
        assert (wrong, done.returncode) == (wrong, status)


def manage(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_no_command_shows_what_a_job_says(capfd: pytest.CaptureFixture[str], root: str) -> None:
    said: dict[str, Any] = {"goal": SECRET, "context": SECRET, "prompt": SECRET}
    jobs = [
        make.WorkJobFactory.create(orphaned=True, **said),
        make.WorkJobFactory.create(orphaned=True, attempts=4, coding=True, **said),
        make.WorkJobFactory.create(overdue=True, **said),
    ]
    for job in jobs:
        make.WorkProviderStepFactory.create(job=job, completed=True, text=SECRET)
        make.WorkStepFactory.create(job=job, arguments=f'{{"q": "{SECRET}"}}')
        make.JobReportFactory.create(job=job, text=SECRET)
    shown = ""
    for arguments in (("--dry-run",), ("--dry-run", "--json"), ("--json",), ()):
        shown += recover(*arguments)
    shown += output_of("computers")
    shown += output_of("revoke_computer", jobs[1].person.username, jobs[1].computer.name)

    printed = capfd.readouterr()
    assert "job.released" in printed.err
    assert SECRET not in shown + printed.out + printed.err


def test_beat_sweeps_jobs_too() -> None:
    watch_database()
    job = make.WorkJobFactory.create(orphaned=True)
    age(Pulse, "last_at", seconds=2)

    assert sweep()["work"]["adopted"] == 1
    job.refresh_from_db()
    assert (job.state, job.owner) == ("queued", None)


def test_pause_and_resume_know_jobs() -> None:
    assert output_of("pause", "work") == "work: draining (was open)\n"
    assert output_of("pause", "work", "--disable") == "work: disabled (was draining)\n"
    assert ReleaseSwitch.objects.get(pk="work").state == "disabled"
    assert output_of("resume", "work") == "work: open (was disabled)\n"
    assert output_of("pause") == "turns: draining (was open)\nwork: draining (was open)\n"
    assert refusal("pause", "voice").startswith("there is no kind 'voice'")
