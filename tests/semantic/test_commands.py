"""`semantic_rebuild` and `semantic_status`: their words, shapes and exit codes, and being cut
short."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from recovery.errors import ErrorCode, ProviderFailed
from recovery.executor import in_thread
from semantic import bounds, transitions
from semantic.embedders import factory
from semantic.models import Embedding, Manifest, SemanticJob
from semantic.status import read_status
from semantic.transitions import Derived
from semantic.worker import SemanticWorker
from tests.factories import let_retries_come_due, unit_vector
from tests.support.embedding import ScriptedEmbedder, active, expire_leases, has, said
from tests.support.processes import ROOT, interruptible
from tests.support.rivals import Rival
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

REBUILD = (sys.executable, "manage.py", "semantic_rebuild")


def run(*arguments: str) -> tuple[int, str]:
    """Return exit status and output of a command in this process."""
    out = StringIO()
    try:
        call_command(*arguments, stdout=out)
    except SystemExit as ended:
        return int(str(ended.code)), out.getvalue()
    return 0, out.getvalue()


def rebuilt() -> dict[str, Any]:
    """Rebuild; return the JSON object without the time it took."""
    status, out = run("semantic_rebuild", "--json")
    report: dict[str, Any] = json.loads(out)
    assert report.pop("duration_ms") >= 0
    assert (status == 0) is (report["state"] == "active")
    return report


@pytest.fixture
def embedder(monkeypatch: pytest.MonkeyPatch) -> ScriptedEmbedder:
    """The embedder that the settings name, in this process."""
    scripted = ScriptedEmbedder(batch_items=4)
    monkeypatch.setattr(factory, "from_settings", lambda: scripted)
    monkeypatch.setattr(
        "semantic.management.commands.semantic_rebuild.SemanticWorker",
        lambda: SemanticWorker(has(scripted)),
    )
    return scripted


@contextmanager
def process(
    environment: dict[str, str], directory: Path, *, stop_at: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `semantic_rebuild` as a process of its own, with the embedder of the settings."""
    probes = directory / "probes"
    probes.mkdir(exist_ok=True)
    with interruptible():
        started = subprocess.Popen(
            REBUILD,
            cwd=ROOT,
            env={**environment, "HOLDFAST_PROBE": stop_at, "HOLDFAST_PROBE_DIR": str(probes)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    with started as running:
        try:
            if stop_at:
                name = f"{stop_at}.{running.pid}.reached"
                wait_until((probes / name).exists, f"{stop_at} reached")
            yield running
        finally:
            running.kill()


def test_a_rebuild_derives_everything_anew_and_then_answers(embedder: ScriptedEmbedder) -> None:
    first = active(embedder)
    said(*(f"message {n}" for n in range(10)))
    assert rebuilt() == {
        "generation": 2,
        "state": "active",
        "resumed": False,
        "total": 10,
        "done": 10,
        "failed": 0,
        "error_code": "",
        "withheld": "",
    }
    first.refresh_from_db()
    assert first.state == "retired"
    assert Embedding.objects.filter(manifest__generation=2).count() == 10
    status, sentence = run("semantic_rebuild")
    assert status == 0
    assert sentence.startswith("Manifest 3 answers: 10 of 10 messages have their vector")


def test_a_rebuild_begins_the_first_manifest_too(embedder: ScriptedEmbedder) -> None:
    said("one")
    assert rebuilt()["generation"] == 1
    assert Manifest.objects.get().state == "active"


def test_a_rebuild_says_when_another_model_is_to_answer(embedder: ScriptedEmbedder) -> None:
    active(embedder)
    heard = StringIO()
    call_command("semantic_rebuild", stdout=StringIO(), stderr=heard)
    assert heard.getvalue() == ""
    was = f"{embedder.identity.provider} {embedder.identity.model}"
    embedder.identity = replace(embedder.identity, model="another")
    call_command("semantic_rebuild", stdout=StringIO(), stderr=heard)
    assert f"The model changes: {was} answers now" in heard.getvalue()


def test_the_old_vectors_answer_while_the_provider_is_away_and_the_next_run_goes_on(
    embedder: ScriptedEmbedder,
) -> None:
    active(embedder)
    said(*(f"message {n}" for n in range(6)))
    embedder.script = [ProviderFailed(ErrorCode.PROVIDER_UNREACHABLE)]
    # the answering manifest takes the failure; what is built is derived, and so it answers
    assert rebuilt()["state"] == "active"
    embedder.script = [ProviderFailed(ErrorCode.PROVIDER_UNREACHABLE)]
    report = rebuilt()
    assert report["error_code"] == "semantic_provider_offline"
    assert (report["state"], report["failed"]) == ("building", 4)
    assert Manifest.objects.get(state="active").generation == 2


def test_what_failed_to_the_last_is_tried_anew_by_the_next_run_and_nothing_else(
    embedder: ScriptedEmbedder,
) -> None:
    active(embedder)
    said("one", "two", "three")
    asyncio.run(SemanticWorker(has(embedder)).drain())
    unfinished = transitions.begin(embedder.identity)
    transitions.backfill(unfinished.pk)
    lost, *others = transitions.claim_jobs(unfinished.pk, limit=3)
    transitions.persist(unfinished.pk, [Derived(claim, unit_vector()) for claim in others])
    for _ in range(bounds.ROUNDS_AFTER_FAILURE + 1):
        assert transitions.fail([(lost, ErrorCode.SEMANTIC_PROVIDER_OFFLINE)]) == 1
        let_retries_come_due()
        transitions.reconcile()
        (lost,) = transitions.claim_jobs(unfinished.pk, limit=1) or [lost]
    embedder.calls.clear()
    assert rebuilt() == {
        "generation": unfinished.generation,
        "state": "active",
        "resumed": True,
        "total": 3,
        "done": 3,
        "failed": 0,
        "error_code": "",
        "withheld": "",
    }
    assert embedder.calls == [[lost.text]]


@pytest.mark.timeout(30)
def test_a_rebuild_whose_manifest_is_retired_meanwhile_ends_and_says_so(
    embedder: ScriptedEmbedder,
) -> None:
    """Where no worker runs, nobody would ever settle the jobs it still has."""

    async def begin_another(_: Sequence[str]) -> None:
        await in_thread(transitions.begin, replace(embedder.identity, model="another"))

    said(*(f"message {n}" for n in range(20)))
    embedder.script = [begin_another]
    status, sentence = run("semantic_rebuild")
    assert status == 1
    assert sentence.startswith("Manifest 1 was retired before it was complete: another was")


def test_what_failed_to_the_last_is_tried_anew_where_nothing_answers_yet(
    embedder: ScriptedEmbedder,
) -> None:
    said("one")
    unfinished = transitions.begin(embedder.identity)
    transitions.backfill(unfinished.pk)
    for _ in range(bounds.ROUNDS_AFTER_FAILURE + 1):
        claims = transitions.claim_jobs(unfinished.pk, limit=1)
        assert transitions.fail([(claims[0], ErrorCode.SEMANTIC_PROVIDER_OFFLINE)]) == 1
        let_retries_come_due()
        transitions.reconcile()
    report = rebuilt()
    assert (report["generation"], report["done"]) == (unfinished.generation, 1)


def test_it_says_in_a_line_that_the_embedder_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away() -> None:
        raise ProviderFailed(ErrorCode.PROVIDER_UNREACHABLE)

    monkeypatch.setattr(factory, "from_settings", away)
    with pytest.raises(CommandError, match="could not be reached"):
        call_command("semantic_rebuild")
    assert Manifest.objects.count() == 0


def test_killed_it_goes_on_where_it_was(
    process_environment: dict[str, str], tmp_path: Path
) -> None:
    said(*(f"message {n}" for n in range(600)))
    with process(process_environment, tmp_path, stop_at="semantic.persisted") as running:
        running.kill()
        running.wait()
    done = Embedding.objects.count()
    assert 0 < done < 600
    expire_leases()
    with process(process_environment, tmp_path) as running:
        out, errors = running.communicate(timeout=60)
    assert running.returncode == 0, errors.decode()
    assert out.decode().startswith("Manifest 1 answers: 600 of 600 messages")
    assert Embedding.objects.count() == 600
    assert SemanticJob.objects.exclude(state="completed").count() == 0
    assert SemanticJob.objects.filter(attempts=1).count() >= done


def test_interrupted_it_says_so_and_goes_on_when_it_is_run_again(
    process_environment: dict[str, str], tmp_path: Path
) -> None:
    said(*(f"message {n}" for n in range(600)))
    with process(process_environment, tmp_path, stop_at="semantic.embedded") as running:
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Interrupted. Run it again to go on from here." in errors.decode()
    assert "Traceback" not in errors.decode()
    expire_leases()
    with process(process_environment, tmp_path) as running:
        running.communicate(timeout=60)
    assert running.returncode == 0
    assert Manifest.objects.get().state == "active"


def test_two_at_once_share_the_work(
    process_environment: dict[str, str], tmp_path: Path
) -> None:
    said(*(f"message {n}" for n in range(600)))
    with (
        process(process_environment, tmp_path, stop_at="semantic.claimed") as first,
        process(process_environment, tmp_path, stop_at="semantic.claimed") as second,
    ):
        (tmp_path / "probes" / "semantic.claimed.release").touch()
        for running in (first, second):
            _, errors = running.communicate(timeout=60)
            assert running.returncode == 0, errors.decode()
    assert Manifest.objects.count() == 1
    assert Embedding.objects.count() == 600
    assert SemanticJob.objects.exclude(attempts=1).count() == 0


def test_a_terminal_sees_a_bar(process_environment: dict[str, str]) -> None:
    said(*(f"message {n}" for n in range(50)))
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        REBUILD, cwd=ROOT, env=process_environment, stdout=subprocess.PIPE, stderr=theirs
    ) as running:
        out, _ = running.communicate(timeout=60)
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert running.returncode == 0
    assert "[##############################] 100% 50/50" in shown
    assert out.decode().startswith("Manifest 1 answers")


def test_nothing_of_it_is_red_on_a_terminal(process_environment: dict[str, str]) -> None:
    """Django writes errors so."""
    said("one")
    ours, theirs = pty.openpty()
    environment = {**process_environment, "TERM": "xterm"}
    with subprocess.Popen(
        REBUILD, cwd=ROOT, env=environment, stdout=theirs, stderr=theirs
    ) as running:
        running.wait(60)
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert "100% 1/1" in shown
    assert "\x1b[31" not in shown


def test_status_is_one_snapshot(
    embedder: ScriptedEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = active(embedder)
    said("one", "two")
    look = transitions.progress

    def while_one_is_claimed(looked_at: Manifest) -> transitions.Progress:
        found = look(looked_at)
        assert Rival(lambda: transitions.claim_jobs(manifest.pk, limit=1)).result()
        return found

    monkeypatch.setattr(transitions, "progress", while_one_is_claimed)
    (shown,) = read_status().manifests
    assert (shown.total, shown.queued, shown.leased) == (2, 2, 0)


def test_status_tells_what_is_missing(embedder: ScriptedEmbedder) -> None:
    status, words = run("semantic_status")
    assert (status, words) == (
        1, "There is no manifest yet: a starting worker begins it.\n",
    )  # fmt: skip
    manifest = active(embedder)
    said("one", "two", "three")
    transitions.claim_jobs(manifest.pk, limit=1)
    (shown,) = json.loads(run("semantic_status", "--json")[1])["manifests"]
    assert (shown["total"], shown["done"]) == (3, 0)
    assert (shown["queued"], shown["leased"], shown["expired"]) == (2, 1, 0)
    expire_leases()
    (shown,) = json.loads(run("semantic_status", "--json")[1])["manifests"]
    assert (shown["leased"], shown["expired"]) == (0, 1)
    assert rebuilt()["state"] == "active"
    status, words = run("semantic_status")
    assert status == 0
    assert "3 of 3 messages have their vector" in words


def test_status_counts_failures_by_code_and_calls_a_text_without_meaning_complete(
    embedder: ScriptedEmbedder,
) -> None:
    async def none(texts: object) -> list[ErrorCode]:
        return [ErrorCode.TEXT_NOT_EMBEDDABLE]

    said("?!")
    embedder.script = [none]
    assert rebuilt()["failed"] == 1
    status, out = run("semantic_status", "--json")
    (shown,) = json.loads(out)["manifests"]
    assert (status, shown["failures"]) == (0, {"text_not_embeddable": 1})


def test_status_sees_what_was_edited_behind_the_databases_rules(
    embedder: ScriptedEmbedder,
) -> None:
    said("one", "two")
    assert rebuilt()["state"] == "active"
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute("UPDATE turns_message SET text = 'x', digest = reverse(digest)")
        cursor.execute("RESET session_replication_role")
    status, out = run("semantic_status", "--json")
    (shown,) = json.loads(out)["manifests"]
    assert (status, shown["stale"]) == (1, 2)
    assert rebuilt()["done"] == 2
    assert run("semantic_status")[0] == 0


def test_status_and_rebuild_say_why_a_manifest_does_not_take_over(
    embedder: ScriptedEmbedder,
) -> None:
    async def none(texts: Sequence[str]) -> list[ErrorCode]:
        return [ErrorCode.TEXT_NOT_EMBEDDABLE] * len(texts)

    said("one", "two")
    assert rebuilt()["state"] == "active"
    embedder.script = [none]
    status, sentence = run("semantic_rebuild")
    why = "it has no vector at all, and the answering manifest has some"
    assert status == 1
    assert f"Manifest 2 does not take over, as {why}: 0 of 2 messages" in sentence
    status, words = run("semantic_status")
    assert status == 1
    assert f"it does not take over: {why}" in words
    shown = json.loads(run("semantic_status", "--json")[1])["manifests"]
    assert [manifest["withheld"] for manifest in shown] == ["", why]
