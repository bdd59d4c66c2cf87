"""The event loop on which a worker process serves its jobs, beside the loop of its turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import structlog
from django.db import connection

from recovery.arrays import array
from recovery.errors import StaleFence
from recovery.executor import in_thread
from recovery.serving import Desk, ServingLoop, fences_of
from recovery.switches import MAY_CLAIM_SQL
from turns.providers.types import TextProvider
from turns.tools.runner import in_own_thread
from work import bounds, requests
from work.lifecycles import KIND
from work.models import WorkJob
from work.requests import AskingFor
from work.server import JobServer, give_back
from work.workspaces import OPENERS, OpenWorkspace, clear_up

log = structlog.get_logger()

# How often the machine is cleared of what ended jobs have left on it.
CLEAR_UP_SECONDS: Final = 600.0
# A hint reaches any worker; a job that is bound to a machine is found by that machine's own.
LOOK_SECONDS: Final = 1.0
_CLAIMABLE: Final = f"""
    SELECT j.id FROM work_workjob j JOIN recovery_runtime r ON r.id = %(owner)s
    WHERE j.finished_at IS NULL AND j.state = 'queued' AND j.cancel_requested_at IS NULL
        AND j.host_id IN ('', r.host_id) AND r.stopped_at IS NULL
        AND (j.deadline_at IS NULL OR j.deadline_at > clock_timestamp())
        AND j.id <> ALL(%(known)s::bigint[]) AND {MAY_CLAIM_SQL}
    ORDER BY j.created_at, j.id LIMIT %(room)s
"""  # noqa: S608  constants


class JobHost(ServingLoop[JobServer]):
    """The jobs of this process. Those that a drain leaves over are given back."""

    word = "job"
    model = WorkJob

    def __init__(
        self,
        *,
        owner: Callable[[], UUID],
        beat: Callable[[], None],
        provider: Callable[[], TextProvider],
        workspaces: Mapping[str, OpenWorkspace] = OPENERS,
        asking: AskingFor = requests.from_settings,
        clear_up: Callable[[], None] = clear_up,
        capacity: int = bounds.JOBS_PER_PROCESS,
        on_broken: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(owner=owner, beat=beat, capacity=capacity, on_broken=on_broken)
        self._make_provider = provider
        self._workspaces = workspaces
        self._asking = asking
        self._clear_up = clear_up

    async def open(self) -> None:
        """Open the way to the provider."""
        self._provider = self._make_provider()

    async def aclose(self) -> None:
        """Close it."""
        await self._provider.aclose()

    def server(self, pk: int, owner: UUID) -> JobServer:
        """Return the server of one job."""
        return JobServer(
            pk,
            owner=owner,
            provider=self._provider,
            workspaces=self._workspaces,
            asking=self._asking,
        )

    def helpers(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Look for jobs too, and clear up after those that ended badly."""
        return *super().helpers(), self._look(), self._keep_clear()

    def wind_up(self, servers: Sequence[JobServer]) -> None:
        """Let each job come to its next checkpoint and be given back there."""
        for server in servers:
            server.wind_up()

    async def give_up(self, servers: Sequence[JobServer]) -> Sequence[int]:
        """Give these jobs back at the checkpoint they came to last."""
        said = {server.pk: server.said for server in servers}
        return await give_back(fences_of(servers), said=said)

    async def _look(self) -> None:
        """Begin with jobs nobody hinted at, while there is room."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self.room <= 0:
                continue
            try:
                found = await in_thread(_claimable, self._owner(), self.room, self.known())
            except StaleFence:
                continue
            except Exception as error:
                # A hint, or the next look, finds what waits.
                log.warning("host.look_failed", kind=self.word, exc_info=error)
                continue
            for pk in found:
                if pk not in self.known():
                    self.hinted(pk)

    async def _keep_clear(self) -> None:
        while True:
            try:
                await in_own_thread(self._clear_up)
            except Exception as error:
                log.warning("host.clear_up_failed", kind=self.word, exc_info=error)
            await asyncio.sleep(CLEAR_UP_SECONDS)


def _claimable(owner: UUID, room: int, known: Iterable[int]) -> list[int]:
    """Return jobs that this runtime may claim now, the oldest first."""
    with connection.cursor() as cursor:
        cursor.execute(
            _CLAIMABLE, {"owner": owner, "room": room, "known": array(known), "kind": KIND}
        )
        return [pk for (pk,) in cursor.fetchall()]


_desk: Final = Desk(JobHost.word)
serve_with: Final = _desk.serve_with
submit: Final = _desk.submit
