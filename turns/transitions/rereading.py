"""What a writer asks on a new connection when the old one was lost during a commit.

A commit either happened or did not; the rows tell. An effect whose "started" row is not found
here is never executed.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from recovery.fences import Fence
from turns.models import ProviderStep, ToolStep, Turn


def claim_under(token: UUID) -> Fence | None:
    """Return the fence when the claim under `token` was committed and still holds.

    Looks among running turns alone, which are few and indexed.
    """
    turn = Turn.objects.filter(claim_token=token, state=Turn.State.RUNNING).first()
    return Fence(turn.pk, turn.generation, token) if turn else None


def provider_step_at(fence: Fence, sequence: int) -> ProviderStep | None:
    """Return this claim's provider step number `sequence`, if it was committed and is open.

    One that was closed meanwhile, with its turn, must not be sent.
    """
    return ProviderStep.objects.filter(
        turn_id=fence.pk,
        generation=fence.generation,
        sequence=sequence,
        state=ProviderStep.State.STARTED,
    ).first()


def tool_steps_of(fence: Fence, provider_step_id: int) -> list[ToolStep]:
    """Return the calls a provider step asked for, in order, as they are now."""
    steps = ToolStep.objects.filter(
        turn_id=fence.pk, generation=fence.generation, provider_step_id=provider_step_id
    )
    return list(steps.order_by("sequence"))


def running_tool_steps(fence: Fence, tool_step_ids: Sequence[int]) -> list[ToolStep]:
    """Return those of this claim's calls that were marked as running, in order."""
    steps = ToolStep.objects.filter(
        pk__in=tool_step_ids,
        turn_id=fence.pk,
        generation=fence.generation,
        state=ToolStep.State.RUNNING,
    )
    return list(steps.order_by("sequence"))
