"""Jobs on a conversation's page: live objects, and the messages that show their reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, LiteralString

from recovery.bounds import cut_utf8
from turns.panels import Object, Panel
from work import bounds
from work.limits import MOST_SECONDS
from work.projection import CORE, IS_OPEN, STEPS
from work.schemas import JobView

# Where an object has to be small: enough to see what the job is and does.
LAST_STEPS: Final = 8
GOAL_SHOWN_BYTES: Final = 200
CUT: Final = "…"

VIEW: Final[LiteralString] = f"""
    json_build_object({CORE},
        'steps', coalesce((SELECT json_agg(y.step ORDER BY y.provider, y.tool) FROM (
            SELECT x.* FROM ({STEPS}) x ORDER BY x.provider DESC, x.tool DESC
            LIMIT {bounds.STEPS_SHOWN}) y), '[]'::json),
        'steps_done', (SELECT count(*) FROM work_workstep q WHERE q.job_id = j.id
                       AND q.state IN ('succeeded', 'failed', 'refused', 'unavailable')),
        'computer', j.authority ->> 'name',
        'elapsed_seconds', extract(epoch FROM coalesce(j.finished_at, statement_timestamp())
            - coalesce(j.deadline_at - j.wall_clock_seconds * interval '1 second',
                       j.created_at)))
"""  # noqa: S608  constants
# The open ones, and the newest of those that ended since; open ones last.
OBJECTS: Final[LiteralString] = f"""
    SELECT json_agg({VIEW} ORDER BY j.finished_at IS NULL, j.id)
    FROM (SELECT j.* FROM work_workjob j WHERE j.conversation_id = c.id AND {IS_OPEN}
          UNION ALL
          (SELECT j.* FROM work_workjob j
           WHERE j.conversation_id = c.id AND j.ended_revision > s.revision
           ORDER BY j.id DESC LIMIT {bounds.JOBS_SHOWN})) j
"""  # noqa: S608  constants
MESSAGES: Final[LiteralString] = f"""
    SELECT w.message_id FROM work_workjob j
    JOIN work_jobreport r ON r.job_id = j.id
    JOIN work_jobreportmessage w ON w.report_id = r.id
    WHERE j.conversation_id = c.id AND j.ended_revision > s.revision
    ORDER BY j.id DESC LIMIT {bounds.JOBS_SHOWN}
"""  # noqa: S608  constants
ABOUT: Final[LiteralString] = """
    SELECT json_build_object('type', 'job', 'id', j.id::text, 'title', j.goal, 'state', j.state,
        'label', CASE j.kind WHEN 'deep_work' THEN 'Deep work' WHEN 'coding' THEN 'Coding'
                             ELSE 'Computer' END)
    FROM work_jobreportmessage w JOIN work_jobreport r ON r.id = w.report_id
    JOIN work_workjob j ON j.id = r.job_id WHERE w.message_id = m.id
"""
ACTIVE: Final[LiteralString] = f"""
    EXISTS (SELECT FROM work_workjob j
            WHERE j.conversation_id = c.id AND j.person_id = c.owner_id AND {IS_OPEN})
"""


def variants(one: Object) -> Sequence[Object]:
    """Return the forms of a job: whole; without its report, which a message shows; with its
    last steps; as little as is needed to know it."""
    whole = JobView.model_validate(one).model_dump(mode="json")
    silent = {**whole, "report": None}
    short = {**silent, "steps": silent["steps"][-LAST_STEPS:]}
    least = {**short, "goal": _cut(short["goal"]), "steps": short["steps"][-1:]}
    return [whole, silent, short, least]


def _cut(goal: str) -> str:
    kept = cut_utf8(goal, GOAL_SHOWN_BYTES)
    return goal if kept == goal else kept + CUT


PANEL: Final = Panel(
    key="jobs",
    frame="job",
    objects_sql=OBJECTS,
    # as many as are read may be fewer than there are
    most=bounds.JOBS_SHOWN - 1,
    messages_sql=MESSAGES,
    about_sql=ABOUT,
    active_sql=ACTIVE,
    variants=variants,
    heavy=1,
    bar="work/bar.html",
    template="work/inline.html",
    aside="work/rail.html",
    style="work/jobs.css",
    script="work/jobs.js",
    told={
        "goal_bytes": bounds.GOAL_MAX_BYTES,
        "context_bytes": bounds.CONTEXT_MAX_BYTES,
        "wall_clock_min_seconds": bounds.WALL_CLOCK_MIN_SECONDS,
        "wall_clock_seconds": {str(kind): most for kind, most in MOST_SECONDS.items()},
    },
)
