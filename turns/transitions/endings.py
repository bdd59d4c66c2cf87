"""A turn ends, with everything it consists of, in one transaction.

The text is folded in a statement after the one that locked the turn: a statement that did both
would see the chunks as they were before the lock, and lose the last of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Max, Q
from django.db.models.functions import Now

from recovery.arrays import array
from recovery.bounds import cut_utf8
from recovery.errors import ErrorCode, IllegalTransition
from recovery.fences import NEXT_MARK_SQL, Fence
from turns import bounds, events
from turns.digests import digest
from turns.models import Message, ProviderStep, Receipt, TextChunk, ToolStep, Turn
from turns.transitions.locks import lock_owned, raise_revisions_of
from turns.usage import add_usages

# A committed chunk cannot make the text longer than the message may be, unless a writer broke
# the bound; then the fold cuts it, at the end of a character.
_LIMIT: Final = bounds.ASSISTANT_TEXT_MAX_BYTES
_FITTING: Final = f"""
    CASE WHEN octet_length(text) <= {_LIMIT} THEN text ELSE
        convert_from(substring(convert_to(text, 'UTF8') FOR (
            SELECT max(n) FROM generate_series({_LIMIT - 3}, {_LIMIT}) AS n
            WHERE get_byte(convert_to(text, 'UTF8'), n) & 192 <> 128)), 'UTF8') END
"""  # noqa: S608  constants
_END_TURNS: Final = f"""
    UPDATE turns_turn SET state = %(state)s, error_code = %(code)s,
        finished_at = statement_timestamp(), write_mark = {NEXT_MARK_SQL}
    WHERE id = ANY(%(ids)s) AND state IN ('queued', 'running')
"""  # noqa: S608  constants
_FOLD: Final = f"""
    UPDATE turns_message m SET state = %(state)s, finished_at = statement_timestamp(),
        text = coalesce(f.text, ''),
        digest = encode(sha256(convert_to(coalesce(f.text, ''), 'UTF8')), 'hex')
    FROM turns_turn t LEFT JOIN (
        SELECT turn_id, {_FITTING} AS text FROM (
            SELECT turn_id, string_agg(text, '' ORDER BY seq) AS text
            FROM turns_textchunk WHERE turn_id = ANY(%(ids)s) GROUP BY turn_id) whole
    ) f ON f.turn_id = t.id
    WHERE t.id = ANY(%(ids)s) AND m.id = t.assistant_message_id AND m.state = 'streaming'
"""  # noqa: S608  constants
_DROP_CHUNKS: Final = "DELETE FROM turns_textchunk WHERE turn_id = ANY(%(ids)s)"
_END_RECEIPTS: Final = """
    UPDATE turns_receipt SET state = %(state)s, error_code = %(code)s,
        finished_at = statement_timestamp()
    WHERE turn_id = ANY(%(ids)s) AND state = 'captured'
"""
_END_PROVIDER_STEPS: Final = """
    UPDATE turns_providerstep SET state = %(state)s, error_code = %(code)s,
        finished_at = statement_timestamp()
    WHERE turn_id = ANY(%(ids)s) AND state = 'started'
"""
# What never started certainly had no effect; what was running may have had one.
_END_TOOL_STEPS: Final = """
    UPDATE turns_toolstep SET finished_at = statement_timestamp(),
        state = CASE state WHEN 'running' THEN %(running)s ELSE %(requested)s END,
        error_code = CASE state WHEN 'running' THEN %(running_code)s ELSE %(requested_code)s END
    WHERE turn_id = ANY(%(ids)s) AND state IN ('requested', 'running')
"""
_LOCK_CONVERSATIONS_OF: Final = """
    SELECT id FROM turns_conversation WHERE id IN (
        SELECT conversation_id FROM turns_turn WHERE id = ANY(%(ids)s))
    ORDER BY id FOR NO KEY UPDATE
"""
_LOCK_OWNED: Final = """
    SELECT t.id, t.conversation_id, t.cancel_requested_at IS NOT NULL
    FROM turns_turn t JOIN unnest(%(ids)s::bigint[], %(generations)s::int[], %(tokens)s::uuid[])
        AS mine(id, generation, token)
        ON (t.id, t.generation, t.claim_token) = (mine.id, mine.generation, mine.token)
    WHERE t.state = 'running' ORDER BY t.id FOR NO KEY UPDATE OF t
"""


@transaction.atomic(durable=True)
def finish_turn(
    fence: Fence,
    state: Turn.State,
    *,
    error_code: ErrorCode | None = None,
    usage: dict[str, int] | None = None,
    response_id: str | None = None,
    last_seq: int | None = None,
    text: str | None = None,
) -> Turn:
    """End the turn and all it consists of for the claim that still holds it; return it as it
    is.

    The committed chunks become the message. `text`, when given, is what the last response said
    in the end, and replaces what was streamed of that response; the text of earlier responses
    stays. Past its bound the text is cut, and a completion becomes
    `assistant_message_limit_reached`. `usage` and `response_id` belong to the provider step
    that is still open. Once a cancel was requested every end is `cancelled`: what `text` has
    beyond the committed text is then counted (`late_bytes`, `late_digest`) and not kept.

    Raises:
        StaleFence: the turn has ended or was claimed by another. Nothing was written.
        IllegalTransition: it cannot end like this: completed with a tool step open, without a
            receipt, or with other text stored than `last_seq` says. Nothing was written.
    """
    turn = lock_owned(fence)
    if turn.cancel_requested_at is not None:
        state, error_code = Turn.State.CANCELLED, ErrorCode.CANCELLED
    Turn.LIFECYCLE.require(turn.state, state)
    streamed, stored_seq = _read_chunks(turn.pk)
    if state == Turn.State.COMPLETED:
        _require_completable(turn.pk)
        if stored_seq != (last_seq or 0):
            raise IllegalTransition("the text stored is not the text sent")

    whole, late = streamed, ""
    if text is not None:
        whole = streamed[: _text_length_before_last_step(turn.pk)] + text
        if turn.cancel_requested_at is not None:
            late = whole[len(streamed) :] if whole.startswith(streamed) else text
            whole = streamed
    kept = cut_utf8(whole, _LIMIT)
    if kept != whole and state == Turn.State.COMPLETED:
        state, error_code = Turn.State.FAILED, ErrorCode.ASSISTANT_MESSAGE_LIMIT_REACHED

    code = _code_of_end(state, error_code)
    Turn.objects.filter(pk=turn.pk).update(
        state=state,
        error_code=code,
        finished_at=Now(),
        late_bytes=len(late.encode()),
        late_digest=digest(late) if late else "",
        write_mark=fence.next_mark(),
    )
    Message.objects.filter(pk=turn.assistant_message_id, state=Message.State.STREAMING).update(
        state=_message_state(state), text=kept, digest=digest(kept), finished_at=Now()
    )
    TextChunk.objects.filter(turn_id=turn.pk).delete()
    ProviderStep.objects.filter(turn_id=turn.pk, state=ProviderStep.State.STARTED).update(
        state=state,
        error_code=code,
        response_id=response_id,
        usage=usage,
        last_seq=stored_seq,
        text_length=len(kept),
        finished_at=Now(),
    )
    Receipt.objects.filter(turn_id=turn.pk, state=Receipt.State.CAPTURED).update(
        state=state, error_code=code, usage=usage_of(turn.pk), finished_at=Now()
    )
    _end_tool_steps([turn.pk], state)
    turn.refresh_from_db()
    return turn


def interrupt_turns(
    ids: Sequence[int], code: ErrorCode, *, conversation_ids: Iterable[int]
) -> None:
    """End locked turns as interrupted, with what was committed and nothing else.

    Set-wise, in the transaction of the caller, who holds the locks of the conversations and
    turns, has tested under them that each is still to be ended, and announces it afterwards.
    """
    end_turns(ids, Turn.State.INTERRUPTED, code)
    raise_revisions_of(conversation_ids)


@transaction.atomic(durable=True)
def interrupt_own_turns(fences: Sequence[Fence], code: ErrorCode) -> list[int]:
    """End what these claims still hold, set-wise; return the ids of the turns that ended by it.

    For a runtime that stops: what it could not finish in time is `interrupted`, or `cancelled`
    where somebody had asked for that.
    """
    asked: dict[str, list[int] | list[UUID]] = {
        "ids": [fence.pk for fence in fences],
        "generations": [fence.generation for fence in fences],
        "tokens": [fence.token for fence in fences],
    }
    with connection.cursor() as cursor:
        cursor.execute(_LOCK_CONVERSATIONS_OF, asked)
        cursor.execute(_LOCK_OWNED, asked)
        held = cursor.fetchall()
    end_turns([pk for pk, _, cancel in held if not cancel], Turn.State.INTERRUPTED, code)
    end_turns(
        [pk for pk, _, cancel in held if cancel], Turn.State.CANCELLED, ErrorCode.CANCELLED
    )
    conversation_ids = {conversation_id for _, conversation_id, _ in held}
    raise_revisions_of(conversation_ids)
    for conversation_id in conversation_ids:
        events.announce_on_commit(conversation_id)
    return [pk for pk, _, _ in held]


def end_turns(ids: Sequence[int], state: Turn.State, code: ErrorCode) -> None:
    """End locked turns without their owner. Text, usage and outcomes stay as committed."""
    if not ids:
        return
    ended = {
        "ids": array(ids),
        "state": state.value,
        "code": code.value,
    }
    with connection.cursor() as cursor:
        cursor.execute(_END_TURNS, ended)
        cursor.execute(_FOLD, {**ended, "state": _message_state(state).value})
        cursor.execute(_DROP_CHUNKS, ended)
        cursor.execute(_END_RECEIPTS, ended)
        cursor.execute(_END_PROVIDER_STEPS, ended)
    _end_tool_steps(ids, state)


def usage_of(turn_id: int) -> dict[str, int] | None:
    """Return the token counts the turn's provider steps reported, summed; None if none did."""
    steps = ProviderStep.objects.filter(turn_id=turn_id, usage__isnull=False)
    return add_usages(steps.values_list("usage", flat=True))


def _end_tool_steps(ids: Sequence[int], state: Turn.State) -> None:
    """Close what tools were asked for and did not end."""
    requested, running = ToolStep.State.CANCELLED, ToolStep.State.INTERRUPTED
    running_code = ErrorCode.OUTCOME_UNKNOWN
    if state == Turn.State.CANCELLED:
        running, running_code = ToolStep.State.CANCELLED, ErrorCode.CANCELLED
    elif state == Turn.State.INTERRUPTED:
        requested = ToolStep.State.INTERRUPTED
    with connection.cursor() as cursor:
        cursor.execute(
            _END_TOOL_STEPS,
            {
                "ids": array(ids),
                "requested": requested.value,
                "requested_code": ErrorCode.NOT_STARTED.value,
                "running": running.value,
                "running_code": running_code.value,
            },
        )


def _read_chunks(turn_id: int) -> tuple[str, int]:
    """Return the committed text and the seq of its last chunk, 0 if there is none."""
    chunks = list(
        TextChunk.objects.filter(turn_id=turn_id).order_by("seq").values_list("seq", "text")
    )
    return "".join(text for _, text in chunks), chunks[-1][0] if chunks else 0


def _require_completable(turn_id: int) -> None:
    open_tool_steps = ToolStep.objects.filter(
        turn_id=turn_id, state__in=sorted(ToolStep.LIFECYCLE.open)
    )
    if open_tool_steps.exists():
        raise IllegalTransition("a tool step is open")
    if not Receipt.objects.filter(turn_id=turn_id).exists():
        raise IllegalTransition("nothing was asked of a provider")


def _text_length_before_last_step(turn_id: int) -> int:
    """Return how long the turn's text was when its last provider step began."""
    steps = ProviderStep.objects.filter(turn_id=turn_id)
    last = steps.aggregate(last=Max("sequence"))["last"] or 0
    earlier = steps.filter(Q(sequence__lt=last)).aggregate(length=Max("text_length"))
    return earlier["length"] or 0


def _message_state(state: Turn.State) -> Message.State:
    if state == Turn.State.COMPLETED:
        return Message.State.COMPLETE
    return Message.State(state.value)


def _code_of_end(state: Turn.State, error_code: ErrorCode | None) -> str:
    """Return the code this end carries: a completion has none, every other end has one."""
    if state == Turn.State.COMPLETED:
        return ""
    if state == Turn.State.CANCELLED:
        return ErrorCode.CANCELLED.value
    return (error_code or ErrorCode.INTERNAL_ERROR).value
