"""Every code a row, an API answer or a report may carry, and the exceptions of the kernel.

A code is at most 64 characters and says nothing private; its label is the one public sentence
shown for it. Provider text, prompts and identifiers never travel in an exception or a code
(contract, shared rules).
"""

from __future__ import annotations

from typing import Final

from django.db import models

ERROR_CODE_MAX_CHARS: Final = 64


class ErrorCode(models.TextChoices):
    """What went wrong, in words every surface shares. The label is safe to show to anyone."""

    # ownership and recovery
    RUNTIME_LOST = "runtime_lost", "The process doing this work died before it finished."
    LEASE_EXPIRED = "lease_expired", "The process doing this work stopped answering."
    RUNTIME_STOPPED = "runtime_stopped", "The service was restarted before this work finished."
    DEADLINE_PASSED = "deadline_passed", "This took longer than the time allowed."
    NEVER_STARTED = "never_started", "No worker was free to start this in time."
    ADOPTION_ATTEMPTS_EXHAUSTED = (
        "adoption_attempts_exhausted",
        "The work was restarted too often without finishing.",
    )
    BUDGET_EXHAUSTED = "budget_exhausted", "The work used up what it was allowed."
    CANCELLED = "cancelled", "You cancelled this."
    INTERNAL_ERROR = "internal_error", "Something went wrong on our side."
    OUTCOME_UNKNOWN = (
        "outcome_unknown",
        "The process died while this ran; whether it took effect is not known.",
    )
    NOT_STARTED = "not_started", "The work ended before this was started."
    NOT_ADOPTED = (
        "not_adopted",
        "The process doing this work died and no other took it over in time.",
    )
    HOST_UNAVAILABLE = (
        "host_unavailable",
        "The machine that holds this work did not come back in time.",
    )
    STORAGE_UNAVAILABLE = "storage_unavailable", "The answer could not be saved in time."

    # asking
    NOT_FOUND = "not_found", "There is nothing here."
    NOT_SIGNED_IN = "not_signed_in", "Sign in first."
    CSRF_FAILED = "csrf_failed", "This page is out of date. Reload it and try again."
    INVALID_REQUEST = "invalid_request", "The request is not understood."
    REQUEST_TOO_LARGE = "request_too_large", "The request is too large."
    METHOD_NOT_ALLOWED = "method_not_allowed", "This address does not do that."
    EMPTY_MESSAGE = "empty_message", "Write something first."
    MESSAGE_TOO_LONG = "message_too_long", "This message is too long."
    INVALID_TEXT = "invalid_text", "The text holds characters that cannot be stored."
    TURN_IN_PROGRESS = "turn_in_progress", "An answer is still being written."
    CLIENT_KEY_CONFLICT = (
        "client_key_conflict",
        "This key was already used for a different request.",
    )
    RATE_LIMITED = "rate_limited", "Too many requests. Wait a moment."
    EMPTY_GOAL = "empty_goal", "Say what the job is to do."
    GOAL_TOO_LONG = "goal_too_long", "The goal is too long."
    CONTEXT_TOO_LONG = "context_too_long", "The context is too long."
    WALL_CLOCK_OUT_OF_RANGE = (
        "wall_clock_out_of_range",
        "A job is given from 10 to 3,600 seconds; deep work, no more than 600.",
    )
    JOB_KIND_UNAVAILABLE = "job_kind_unavailable", "This kind of job cannot be done here."
    JOB_LIMIT_REACHED = "job_limit_reached", "Too many jobs are at work. Wait for one to end."
    COMPUTER_REQUIRED = "computer_required", "Say on which computer the job is to work."
    OUTSIDE_ROOTS = "outside_roots", "Name a directory that jobs may work in on this computer."
    COMPUTER_LIMIT_REACHED = "computer_limit_reached", "This person has no room for a computer."
    COMPUTER_NAME_TAKEN = "computer_name_taken", "This person has another computer so named."
    COMPUTER_ELSEWHERE = "computer_elsewhere", "This computer is another machine."
    INVALID_ROOT = (
        "invalid_root",
        "A root is the absolute path of a directory that is here, without links in it.",
    )
    INVALID_CHECK = "invalid_check", "A check is a short name and the command it stands for."
    PAUSED = "paused", "New work is paused for maintenance."
    SERVICE_UNAVAILABLE = (
        "service_unavailable",
        "The service cannot answer right now. Try again.",
    )

    # providers
    PROVIDER_UNREACHABLE = "provider_unreachable", "The model service could not be reached."
    PROVIDER_TIMEOUT = "provider_timeout", "The model service stopped answering."
    PROVIDER_REJECTED = "provider_rejected", "The model service did not accept the request."
    PROVIDER_CONTEXT_EXCEEDED = (
        "provider_context_exceeded",
        "The conversation is too long for the model.",
    )
    PROVIDER_AUTH = "provider_auth", "The model service refused our credentials."
    PROVIDER_FORBIDDEN = "provider_forbidden", "The model service does not allow this."
    PROVIDER_NOT_FOUND = "provider_not_found", "The model service does not know this model."
    PROVIDER_RATE_LIMITED = (
        "provider_rate_limited",
        "The model service is busy. Try again later.",
    )
    PROVIDER_QUOTA = "provider_quota", "The model service's quota is used up."
    PROVIDER_UNAVAILABLE = "provider_unavailable", "The model service is not available."
    PROVIDER_FAILED = "provider_failed", "The model service reported a failure."
    PROVIDER_PROTOCOL = "provider_protocol", "The model service sent something malformed."
    PROVIDER_CANCELLED = "provider_cancelled", "The model service cancelled the answer."
    TRUNCATED_STREAM = "truncated_stream", "The answer broke off before its end."
    EMPTY_OUTPUT = "empty_output", "The model answered with nothing."
    RESPONSE_INCOMPLETE = "response_incomplete", "The answer was cut before its end."
    RESPONSE_TOO_LARGE = "response_too_large", "The model's answer was larger than allowed."
    TERMINAL_EVENT_REPEATED = (
        "terminal_event_repeated",
        "The model service ended one answer twice.",
    )
    RESPONSE_ID_CONFLICT = (
        "response_id_conflict",
        "The model service mixed this answer up with another.",
    )
    ASSISTANT_MESSAGE_LIMIT_REACHED = (
        "assistant_message_limit_reached",
        "The answer reached the largest size allowed.",
    )

    # tools
    UNKNOWN_TOOL = "unknown_tool", "There is no such tool."
    INVALID_TOOL_ARGUMENTS = "invalid_tool_arguments", "The tool was called wrongly."
    TOOL_CALL_LIMIT_REACHED = "tool_call_limit_reached", "No more tool calls are allowed here."
    PROVIDER_STEP_LIMIT_REACHED = (
        "provider_step_limit_reached",
        "No more model requests are allowed here.",
    )
    PROVIDER_CALL_ID_CONFLICT = (
        "provider_call_id_conflict",
        "The model service used one call id for two different calls.",
    )
    TOOL_OUTCOME_CONFLICT = (
        "tool_outcome_conflict",
        "The tool reported two different outcomes.",
    )
    TOOL_FAILED = "tool_failed", "The tool failed."
    TOOL_TIMEOUT = "tool_timeout", "The tool took too long."
    TOOL_RESULT_TOO_LARGE = (
        "tool_result_too_large",
        "The tool's result was larger than allowed.",
    )
    WORK_RECURSION_REFUSED = "work_recursion_refused", "A job cannot start or steer jobs."
    DIRECTORY_MISSING = "directory_missing", "The directory is not there."
    NOT_A_REPOSITORY = (
        "not_a_repository",
        "The directory is in no Git repository that jobs can work in.",
    )
    REPOSITORY_EMPTY = "repository_empty", "The Git repository has no commit to begin from."
    WORKSPACE_FAILED = (
        "workspace_failed",
        "The job's working copy could not be made, or is gone.",
    )
    PATH_REFUSED = "path_refused", "The path leads out of the job's working copy."
    COMMAND_REFUSED = "command_refused", "This job may not run that."
    REPOSITORY_TOUCHED = (
        "repository_touched",
        "A command changed the repository outside the job's branch; it was put back.",
    )
    LEXICAL_UNAVAILABLE = "lexical_unavailable", "The history could not be searched."
    ADDRESS_NOT_ALLOWED = (
        "address_not_allowed",
        "This address is not on your list of allowed addresses.",
    )

    # search
    SEMANTIC_PROVIDER_OFFLINE = (
        "semantic_provider_offline",
        "The embedding service could not be reached.",
    )
    SEMANTIC_DRAIN_FAILED = "semantic_drain_failed", "Messages could not be indexed just now."
    SEMANTIC_ATTEMPTS_EXHAUSTED = (
        "semantic_attempts_exhausted",
        "The message could not be indexed: each attempt broke off.",
    )
    TEXT_NOT_EMBEDDABLE = "text_not_embeddable", "The text has nothing to compare it by."
    EMPTY_QUERY = "empty_query", "Say what to look for."
    SEARCH_QUERY_TOO_LONG = "search_query_too_long", "Make the search shorter."
    SCOPE_REFUSED = "scope_refused", "This view belongs to another conversation."


class StaleFence(Exception):
    """A newer generation, or the end, has overtaken the writer. Nothing was written."""


class IllegalTransition(Exception):
    """The row is in a state from which the asked-for move is not legal. Nothing was written."""


class BoundExceeded(Exception):
    """A value is larger than its bound; `code` says which kind. Nothing was written."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.value)
        self.code = code


class Refused(Exception):
    """A request was understood and is not granted; `code` says why. Nothing was written.

    `retry_after_seconds` is set where waiting helps.
    """

    def __init__(self, code: ErrorCode, *, retry_after_seconds: int | None = None) -> None:
        super().__init__(code.value)
        self.code = code
        self.retry_after_seconds = retry_after_seconds


class ProviderFailed(Exception):
    """A provider did not deliver. Only our own words leave the adapter; raise it `from None`.

    Attributes:
        code: what went wrong.
        reason: where, in the adapter's own fixed words (a field of our frames, a rule).
        http_status: the status of the answer, when it was not a success.
        response_id: the response's identity, when it had been named by then.
        usage: the token counts reported by then; never made up.
    """

    def __init__(
        self,
        code: ErrorCode,
        *,
        reason: str = "",
        http_status: int | None = None,
        response_id: str | None = None,
        usage: dict[str, int] | None = None,
    ) -> None:
        super().__init__(code.value)
        self.code = code
        self.reason = reason
        self.http_status = http_status
        self.response_id = response_id
        self.usage = usage
