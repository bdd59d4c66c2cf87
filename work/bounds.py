"""Limits of delegated jobs (design section 13), with units and consequences.

They are applied where data enters and again by the database.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024

# Refused at the edge with `goal_too_long` and `context_too_long`.
GOAL_MAX_BYTES: Final = 2_000
CONTEXT_MAX_BYTES: Final = 2_000
# What the model is told to do, put together at admission from goal and context.
PROMPT_MAX_BYTES: Final = 8_000
# Past it a report is cut with a mark; its row keeps the size of the whole.
REPORT_MAX_BYTES: Final = 8_000
AGENT_MAX_CHARS: Final = 64
PATH_MAX_BYTES: Final = 512
BRANCH_MAX_CHARS: Final = 128
COMMIT_MAX_CHARS: Final = 64

# Model requests and tool calls of one job, over all its generations. Past the calls one last
# request without tools asks for a report, and the job ends `budget_exhausted`.
PROVIDER_STEPS_PER_JOB: Final = 32
TOOL_CALLS_PER_JOB: Final = 64
TOOL_CALLS_HARD_STOP: Final = 128
# What one response of a job may say; all of it is kept, for an adopter to go on from.
RESPONSE_TEXT_MAX_BYTES: Final = 64 * KIB

# The clock of a job starts at its first claim and goes on through every adoption.
WALL_CLOCK_SECONDS: Final = 600
COMPUTER_WALL_CLOCK_SECONDS: Final = 3_600
WALL_CLOCK_MIN_SECONDS: Final = 10
# A job nobody claimed ends `never_started`; one that was released and that nobody took over in
# time ends with an honest interrupted report.
QUEUE_DEADLINE_SECONDS: Final = 3_600
ADOPTION_DEADLINE_SECONDS: Final = 300

AUTHORITY_MAX_BYTES: Final = 32 * KIB
BUDGET_MAX_BYTES: Final = 4 * KIB
ACP_SESSION_ID_MAX_BYTES: Final = 512

# Refused with `job_limit_reached`.
ACTIVE_JOBS_PER_OWNER: Final = 8
JOBS_PER_PROCESS: Final = 32
COMPUTERS_PER_OWNER: Final = 8
COMPUTER_NAME_MAX_CHARS: Final = 100
ROOTS_PER_COMPUTER: Final = 16
ROOT_MAX_BYTES: Final = 512
CHECKS_PER_COMPUTER: Final = 16
CHECKS_MAX_BYTES: Final = 4 * KIB

# The page shows no more of a conversation's jobs, and of a job's steps, than the newest.
JOBS_SHOWN: Final = 20
STEPS_SHOWN: Final = 64
