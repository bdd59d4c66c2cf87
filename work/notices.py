"""What a job says when it did not complete: how it ended, and what is known to have happened.

Nothing is made up: the sentences come from the rows, and a call whose outcome is not known is
said to be so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from django.db import connection

from recovery.arrays import array
from recovery.blanks import has_words, shows_something
from recovery.errors import ErrorCode
from work.models import WorkJob
from work.projection import COMMIT

OPENINGS: Final[Mapping[str, str]] = {
    WorkJob.State.FAILED: "This job failed.",
    WorkJob.State.CANCELLED: "This job was cancelled.",
    WorkJob.State.INTERRUPTED: "This job was interrupted.",
    WorkJob.State.BUDGET_EXHAUSTED: "This job ended before it was done.",
}
_FACTS: Final = f"""
    SELECT j.id, j.conversation_id, coalesce(j.authority ->> 'name', ''), j.agent, j.branch,
        j.base_commit, CASE j.kind WHEN 'coding' THEN ({COMMIT}) END, j.attempts,
        EXISTS (SELECT FROM work_workproviderstep p WHERE p.job_id = j.id),
        s.may_have_changed, s.succeeded, s.unsuccessful, s.unknown, s.unstarted
    FROM work_workjob j CROSS JOIN LATERAL (
        SELECT coalesce(bool_or(effect <> 'read' AND started_at IS NOT NULL), false)
                AS may_have_changed,
            count(*) FILTER (WHERE state = 'succeeded') AS succeeded,
            count(*) FILTER (WHERE state IN ('failed', 'refused', 'unavailable'))
                AS unsuccessful,
            count(*) FILTER (WHERE state IN ('running', 'interrupted')) AS unknown,
            count(*) FILTER (WHERE state IN ('requested', 'cancelled')) AS unstarted
        FROM work_workstep WHERE job_id = j.id
    ) s WHERE j.id = ANY(%s::bigint[])
"""  # noqa: S608  a constant
_LAST_WORDS: Final = f"""
    SELECT DISTINCT ON (job_id) job_id, text FROM work_workproviderstep
    WHERE job_id = ANY(%s::bigint[]) AND {has_words("text")} ORDER BY job_id, sequence DESC
"""  # noqa: S608  constants
_ALL_WORDS: Final = f"""
    SELECT job_id, text FROM work_workproviderstep
    WHERE job_id = ANY(%s::bigint[]) AND {has_words("text")} ORDER BY job_id, sequence
"""  # noqa: S608  constants


@dataclass(frozen=True, slots=True)
class Facts:
    """What the rows say about a job that is about to end, and how its calls went.

    `commit` is the last that the job made itself. `has_asked` says that its model was asked for
    something, `may_have_changed` that a call was started that does more than read.
    """

    pk: int
    conversation_id: int
    computer: str
    agent: str
    branch: str
    base_commit: str
    commit: str | None
    attempts: int
    has_asked: bool
    may_have_changed: bool
    succeeded: int
    unsuccessful: int
    unknown: int
    unstarted: int


def read_facts(ids: Sequence[int]) -> dict[int, Facts]:
    """Return the facts of each job, which its caller has locked."""
    with connection.cursor() as cursor:
        cursor.execute(_FACTS, [array(ids)])
        return {row[0]: Facts(*row) for row in cursor.fetchall()}


def read_last_words(ids: Sequence[int]) -> dict[int, str]:
    """Return what each job's model said last, of those where it said anything."""
    if not ids:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(_LAST_WORDS, [array(ids)])
        said = dict(cursor.fetchall())
        # rarely, of a model that ended on marks which nobody sees
        if unseen := [pk for pk, text in said.items() if not shows_something(text)]:
            cursor.execute(_ALL_WORDS, [array(unseen)])
            said |= {pk: text for pk, text in cursor.fetchall() if shows_something(text)}
    return {pk: text for pk, text in said.items() if shows_something(text)}


def notice(facts: Facts, state: WorkJob.State, code: ErrorCode, last_words: str = "") -> str:
    """Return the report of a job that ends in `state` without having completed."""
    sentences = [OPENINGS[state]]
    if code not in {ErrorCode.CANCELLED, ErrorCode.BUDGET_EXHAUSTED}:
        sentences.append(str(code.label))
    elif code == ErrorCode.BUDGET_EXHAUSTED:
        sentences.append("It used up the requests and tool calls it was allowed.")
    sentences += [*_attempts(facts), *_calls(facts), *_place(facts)]
    said = f"\n\nWhat it said last:\n\n{last_words}" if last_words else ""
    return " ".join(sentences) + said


def _attempts(facts: Facts) -> list[str]:
    if facts.attempts == 0:
        return ["It had not begun."]
    if facts.attempts == 1:
        return []
    return [f"It was started {facts.attempts} times."]


def _calls(facts: Facts) -> list[str]:
    counts = (
        (facts.succeeded, "succeeded"),
        (facts.unsuccessful, "did not succeed"),
        (facts.unstarted, "was not started" if facts.unstarted == 1 else "were not started"),
    )
    told = [f"{count} {what}" for count, what in counts if count]
    sentences = [f"Of its tool calls, {', '.join(told)}."] if told else []
    if facts.unknown == 1:
        sentences.append("For 1 tool call it is not known whether it took effect.")
    elif facts.unknown:
        calls = f"{facts.unknown} tool calls"
        sentences.append(f"For {calls} it is not known whether they took effect.")
    return sentences


def _place(facts: Facts) -> list[str]:
    if not facts.computer:
        return []
    agent = f" with {facts.agent}" if facts.agent else ""
    worked = "It worked" if facts.has_asked else "It was to work"
    sentences = [f"{worked} on {facts.computer}{agent}."]
    if not facts.branch:
        return sentences
    if not (facts.commit or facts.may_have_changed):
        return [*sentences, "It changed nothing in the repository."]
    kept = (
        "What it had not committed is committed there as its working copy is taken down, if "
        "that is still to be had"
    )
    if facts.commit:
        sentences.append(
            f"Its branch is {facts.branch}; its last commit there is {facts.commit}. {kept}."
        )
    else:
        sentences.append(
            f"Its branch is {facts.branch}, begun at {facts.base_commit}. {kept}; a branch on "
            "which nothing happened is removed."
        )
    return sentences
