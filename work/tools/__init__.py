"""What a turn may do with jobs: start, list, look at and cancel those of its person.

Jobs themselves do not have these tools: a job cannot start or steer jobs.
"""

from __future__ import annotations

from typing import Any, Final

from turns.tools.registry import Tool
from work.tools import jobs, start_job

TOOLS: Final[tuple[Tool[Any], ...]] = (start_job.TOOL, *jobs.TOOLS)
JOB_TOOL_NAMES: Final = frozenset(tool.name for tool in TOOLS)
