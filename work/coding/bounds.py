"""Limits of coding jobs, with units and consequences."""

from __future__ import annotations

from typing import Final

from turns.bounds import TOOL_ARGUMENTS_MAX_BYTES, TOOL_RESULT_MAX_BYTES
from work.bounds import KIB, PATH_MAX_BYTES

MIB: Final = KIB * KIB
GIB: Final = KIB * MIB

__all__ = ["PATH_MAX_BYTES", "TOOL_ARGUMENTS_MAX_BYTES", "TOOL_RESULT_MAX_BYTES"]

# A check or command. Past a limit its whole tree of processes is ended and the step says which.
PROGRAM_SECONDS: Final = 300
PROGRAM_CPU_SECONDS: Final = 600
PROGRAM_GRACE_SECONDS: Final = 2.0
PROGRAM_DATA_BYTES: Final = 4 * GIB
PROGRAM_TREE_BYTES: Final = 4 * GIB
PROGRAM_TREE_PROCESSES: Final = 512
PROGRAM_FILE_BYTES: Final = GIB
PROGRAM_OPEN_FILES: Final = 4_096
PROGRAM_DISK_LEFT_BYTES: Final = 256 * MIB
# Of what it says the beginning and the end are kept, with a mark between.
PROGRAM_HEAD_BYTES: Final = 12 * KIB
PROGRAM_TAIL_BYTES: Final = 28 * KIB
PROGRAM_OUTPUT_BYTES: Final = 256 * MIB
PROGRAM_WORDS: Final = 64

# Git, run by us. Its answer is taken whole or not at all.
GIT_SECONDS: Final = 60
GIT_STAGE_SECONDS: Final = 180
GIT_CHECKOUT_SECONDS: Final = 600
GIT_ANSWER_BYTES: Final = 16 * MIB
# GIT_CONFIG_GLOBAL came with 2.32
GIT_VERSION: Final = (2, 32)

# How long a launcher that was told to end is waited for before it is ended with all below it.
LAUNCHER_SECONDS: Final = 10.0

READ_FILE_MAX_BYTES: Final = 16 * MIB
READ_LINES: Final = 500
READ_LINE_MAX_BYTES: Final = 4 * KIB
EDIT_FILE_MAX_BYTES: Final = MIB
LISTED_ENTRIES: Final = 500
SEARCH_SECONDS: Final = 15
SEARCH_HITS: Final = 100
SEARCH_LINE_MAX_BYTES: Final = 400
SEARCH_FILE_MAX_BYTES: Final = 2 * MIB
SEARCH_PATTERN_MAX_CHARS: Final = 400
DIFF_MAX_BYTES: Final = 48 * KIB
COMMIT_MESSAGE_MAX_BYTES: Final = 4 * KIB
CHANGED_FILES_NAMED: Final = 50
