"""Migrations go back to nothing and forward again, with rows, and leave nothing over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import uuid4

import psycopg
import pytest

from tests.support.databases import clone
from tests.support.processes import ChildProcess

# who depends on whom, from the top down
APPS: Final = ("work", "semantic", "turns", "recovery")
ROWS: Final = 1_000

# Every table of the product, filled behind the models' backs; `n` counts from 1.
FILL: Final = """
    INSERT INTO auth_user (id, username, password, first_name, last_name, email, is_superuser,
        is_staff, is_active, date_joined)
    SELECT n, 'u' || n, '', '', '', '', false, false, true, now()
    FROM generate_series(1, {rows}) n;
    INSERT INTO turns_conversation (id, owner_id, title, revision)
    SELECT n, n, '', 1 FROM generate_series(1, {rows}) n;
    INSERT INTO semantic_manifest (id, generation, state, provider, model, version, dimensions,
        query_prefix, passage_prefix, digest, scanned_to)
    VALUES (1, 1, 'building', 'p', 'm', '', 2, '', '', 'd', 0);
    INSERT INTO turns_message (id, conversation_id, role, state, text, digest, finished_at)
    SELECT n, n, 'user', 'complete', 'Why?', 'd', now() FROM generate_series(1, {rows}) n;
    INSERT INTO turns_message (id, conversation_id, role, state, text, digest)
    SELECT {rows} + n, n, 'assistant', 'streaming', '', '' FROM generate_series(1, {rows}) n;
    UPDATE semantic_semanticjob SET state = 'running', attempts = 1,
        write_mark = 1::bigint << 32, claim_token = gen_random_uuid(),
        lease_expires_at = statement_timestamp() + interval '9 s';
    WITH done AS (
        UPDATE semantic_semanticjob SET state = 'completed', write_mark = write_mark + 1,
            finished_at = statement_timestamp() RETURNING *
    )
    INSERT INTO semantic_embedding (manifest_id, message_id, conversation_id, person_id, job_id,
        attempt, digest, vector)
    SELECT manifest_id, message_id, conversation_id, person_id, id, 1, digest, '[0.6,0.8]'
    FROM done;
    INSERT INTO semantic_semanticreceipt (job_id, message_id, manifest_generation, attempt,
        outcome, error_code)
    SELECT id, message_id, 1, 1, 'completed', '' FROM semantic_semanticjob;
    INSERT INTO turns_turn (id, conversation_id, user_message_id, assistant_message_id, state,
        error_code, request_digest, model, limits, owner, generation, claim_token, write_mark,
        attempts, queue_deadline_at, next_dispatch_at, dispatch_count, claimed_at, deadline_at,
        late_bytes, late_digest)
    SELECT n, n, n, {rows} + n, 'running', '', 'd', 'm', '{{}}', gen_random_uuid(), 1,
        gen_random_uuid(), 1::bigint << 32, 1, now(), now(), 0, now(), now(), 0, ''
    FROM generate_series(1, {rows}) n;
    INSERT INTO turns_receipt (turn_id, generation, state, error_code, provider_api, model,
        instructions_digest, input_digest, tools_digest, message_count, byte_count)
    SELECT n, 1, 'captured', '', 'a', 'm', 'd', 'd', 'd', 1, 1
    FROM generate_series(1, {rows}) n;
    INSERT INTO turns_providerstep (id, turn_id, generation, sequence, state, error_code, model,
        request_digest, request_bytes, offers_tools, anomaly_count)
    SELECT n, n, 1, 1, 'started', '', 'm', 'd', 1, true, 0 FROM generate_series(1, {rows}) n;
    INSERT INTO turns_toolstep (turn_id, provider_step_id, generation, sequence, state,
        error_code, call_id, item_id, name, effect, arguments, arguments_digest, invocation_key,
        result, result_digest, result_bytes)
    SELECT n, n, 1, 1, 'requested', '', 'c', '', 't', 'read', '', 'd', gen_random_uuid(), '',
        '', 0 FROM generate_series(1, {rows}) n;
    INSERT INTO turns_textchunk (turn_id, generation, seq, text)
    SELECT n, 1, 1, 'text' FROM generate_series(1, {rows}) n;
    INSERT INTO turns_note (owner_id, text, invocation_key)
    SELECT n, 'note', gen_random_uuid() FROM generate_series(1, {rows}) n;
    INSERT INTO turns_apitoken (user_id, digest) SELECT n, n FROM generate_series(1, {rows}) n;
    INSERT INTO turns_webhookaddress (owner_id, url)
    SELECT n, 'u' FROM generate_series(1, {rows}) n;
    INSERT INTO work_computer (id, person_id, name, host_id, roots, tier, checks)
    SELECT n, n, 'laptop', 'h', '["/srv"]', 'probe', '{{}}' FROM generate_series(1, {rows}) n;
    ALTER TABLE work_workjob DISABLE TRIGGER USER; -- they run already
    INSERT INTO work_workjob (id, person_id, conversation_id, kind, goal, context, prompt,
        computer_id, agent, cwd, host_id, model, wall_clock_seconds, authority, budget,
        before_message_id, request_digest, state, error_code, owner, generation, claim_token,
        write_mark, attempts, planned_releases, queue_deadline_at, next_dispatch_at,
        dispatch_count, acp_session_id, acp_cursor, base_commit, branch, claimed_at,
        deadline_at)
    SELECT n, n, n, 'coding', 'g', '', 'g', n, '', '/srv', 'h', 'm', 600,
        '{{"name": "laptop", "tier": "probe", "roots": ["/srv"], "checks": {{}},
            "cwd": "/srv"}}',
        '{{"wall_clock_seconds": 600}}', 1, 'd', 'running', '', gen_random_uuid(), 1,
        gen_random_uuid(), 1::bigint << 32, 1, 0, now(), now(), 0, 's', 1, 'c', 'b', now(),
        now()
    FROM generate_series(1, {rows}) n;
    INSERT INTO work_workproviderstep (id, job_id, generation, sequence, state, error_code,
        model, request_digest, request_bytes, offers_tools, anomaly_count, text)
    SELECT n, n, 1, 1, 'started', '', 'm', 'd', 1, true, 0, ''
    FROM generate_series(1, {rows}) n;
    INSERT INTO work_workstep (job_id, provider_step_id, generation, write_mark, sequence,
        state, error_code, call_id, item_id, name, effect, arguments, arguments_digest,
        invocation_key, result, result_digest, result_bytes)
    SELECT n, n, 1, 1::bigint << 32, 1, 'requested', '', 'c', '', 't', 'read', '', 'd',
        gen_random_uuid(), '', '', 0 FROM generate_series(1, {rows}) n;
    INSERT INTO work_jobreport (id, job_id, generation, kind, text, byte_count, digest)
    SELECT n, n, 1, 'result', 'Found.', 6, 'd' FROM generate_series(1, {rows}) n;
    INSERT INTO work_jobreportmessage (report_id, message_id)
    SELECT n, n FROM generate_series(1, {rows}) n;
    INSERT INTO recovery_runtime (id, role, host_id, host, pid, boot_id, lease_expires_at,
        stop_reason)
    SELECT gen_random_uuid(), 'worker', 'h', 'h', 1, 'b', now(), ''
    FROM generate_series(1, {rows}) n;
    INSERT INTO recovery_pulse (id, last_at, unbroken_since) VALUES (1, now(), now());
    INSERT INTO recovery_recoveryevent (kind, row_id, cause, action, generation, error_code)
    SELECT 'turns', n, 'not_adopted', 'interrupted', 1, 'not_adopted'
    FROM generate_series(1, {rows}) n;
    INSERT INTO recovery_recoveryfailure (kind, row_id, error_code, reason, failed_count,
        skipped_count) SELECT 'turns', n, '', '', 1, 0 FROM generate_series(1, {rows}) n;
    INSERT INTO recovery_releaseswitch (kind, state) VALUES ('turns', 'open');
"""
OURS: Final = """
    SELECT 'table ' || relname FROM pg_class
    WHERE relkind IN ('r', 'S') AND relname ~ '^(work|semantic|turns|recovery)_'
    UNION ALL SELECT 'trigger ' || tgrelid::regclass || ' ' || tgname || ' '
        || pg_get_triggerdef(oid)
    FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL SELECT 'function ' || proname || ' ' || prosrc
    FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    ORDER BY 1
"""


MIGRATION_SECONDS: Final = 120.0


class Database:
    """A migrated database of its own, and the process that takes it back and forth."""

    def __init__(self, url: str, log: Path) -> None:
        self.url = url
        self._migrator = ChildProcess(
            "tests.support.migrator",
            environment={**os.environ, "DATABASE_URL": url, "DIRECT_DATABASE_URL": ""},
            log=log,
        )

    def migrate(self, *targets: tuple[str, str]) -> None:
        """Migrate to each target, or to the newest of all."""
        self._migrator.say("migrate", targets=targets or [()])
        self._migrator.expect("done", seconds=MIGRATION_SECONDS)

    def walk(self, *apps: str, back: bool = False) -> list[tuple[str, list[str]]]:
        """Take these apps forward or back; return each migration and what was ours after it."""
        self._migrator.say("walk", apps=apps, back=back, read=OURS)
        steps = self._migrator.expect("done", seconds=MIGRATION_SECONDS)["steps"]
        return [(name, ours) for name, ours in steps]

    def ours(self) -> list[str]:
        """Return our tables, sequences, triggers and functions, as the catalogue has them."""
        with psycopg.connect(self.url) as session:
            return [row[0] for row in session.execute(OURS).fetchall()]

    def execute(self, statements: str) -> None:
        with psycopg.connect(self.url) as session:
            session.execute(statements.encode())

    def close(self) -> None:
        """End the process; the database is dropped by whoever made it."""
        self._migrator.close()


@pytest.fixture
def database(migrated_template: str, tmp_path: Path) -> Iterator[Database]:
    """A database of its own that migrations have made from nothing."""
    with clone(migrated_template, f"holdfast_migrations_{uuid4().hex[:12]}") as url:
        made = Database(url, tmp_path / "migrator.log")
        try:
            yield made
        finally:
            made.close()


@pytest.mark.timeout(300)
def test_with_rows_in_every_table_migrations_go_back_to_nothing_and_forward_again(
    database: Database,
) -> None:
    """failure H81"""
    made = database.ours()
    database.execute(FILL.format(rows=ROWS))
    database.migrate(*((app, "zero") for app in APPS))
    assert database.ours() == []
    database.migrate()
    assert database.ours() == made


@pytest.mark.timeout(300)
def test_each_migration_can_be_taken_back_alone_and_leaves_nothing_over(
    database: Database,
) -> None:
    """failure H82"""
    made = database.ours()
    back = database.walk(*APPS, back=True)
    forward = database.walk(*reversed(APPS))
    assert [name for name, _ in back] == [name for name, _ in reversed(forward)]
    assert database.ours() == made
    never_taken: list[list[str]] = [[], *(ours for _, ours in forward[:-1])]
    for (name, left), before in zip(back, reversed(never_taken), strict=True):
        assert left == before, name
