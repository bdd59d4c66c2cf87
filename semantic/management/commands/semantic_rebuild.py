"""`manage.py semantic_rebuild`: derive every vector anew."""

from __future__ import annotations

import asyncio
import json
import os
from logging import WARNING
from typing import Any, Final

import structlog
from django.core.management.base import CommandError, CommandParser

from recovery.commands import OperatorCommand
from recovery.errors import ProviderFailed
from semantic.embedders import factory
from semantic.models import Manifest
from semantic.rebuilding import Rebuilt, rebuild
from semantic.transitions import Progress
from semantic.worker import SemanticWorker

EXIT_UNFINISHED: Final = 1
EXIT_INTERRUPTED: Final = 130
INTERRUPTED: Final = (
    "Interrupted. Run it again to go on from here. Running workers go on meanwhile: "
    "when they have finished it, another run begins anew."
)
BAR_CHARS: Final = 30
# of a terminal that does not say how wide it is
COLUMNS: Final = 80


class Command(OperatorCommand):
    """Fills a new manifest while the old one answers, then lets it answer."""

    help = (
        "Derive the vector of every message anew, with the embedder that EMBEDDINGS_API names. "
        "The present vectors answer until the new ones have caught up. It works by itself and "
        "beside running workers. Cut short, by Ctrl-C or a kill, it goes on where it was when "
        "it is run again (jobs that were under way wait for their lease: at most 30 s). "
        "Exit status: 0 the new vectors answer, 1 messages failed and are tried again later, "
        "or another manifest was begun meanwhile, 130 interrupted."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the form."""
        parser.add_argument(
            "--json", action="store_true", help="print one JSON object and no progress"
        )

    def handle(self, *_args: object, **options: Any) -> None:
        """Rebuild; the bar goes to standard error, the result to standard output."""
        self._bar = not options["json"] and self.stderr.isatty()
        if self._bar:
            # events of what goes well would tear the bar, and say what it says
            structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(WARNING))
        try:
            self._tell_of_change()
            rebuilt = asyncio.run(rebuild(SemanticWorker(), self._show if self._bar else None))
        except ProviderFailed as error:
            raise CommandError(f"the embedder cannot be used: {error.code.label}") from error
        except KeyboardInterrupt:
            self._end_bar()
            self._say(INTERRUPTED)
            raise SystemExit(EXIT_INTERRUPTED) from None
        self._end_bar()
        if options["json"]:
            self.stdout.write(json.dumps(_as_dict(rebuilt)))
        else:
            self.stdout.write(_sentence(rebuilt))
        if not rebuilt.activated:
            raise SystemExit(EXIT_UNFINISHED)

    def _tell_of_change(self) -> None:
        """Say when another model is to answer: a shell may lack what the workers are told."""
        answering = Manifest.objects.filter(state=Manifest.State.ACTIVE).first()
        wanted = factory.from_settings().identity
        if answering is None:
            return
        now = f"{answering.provider} {answering.model}"
        next_ = f"{wanted.provider} {wanted.model}"
        if now != next_:
            self._say(
                f"The model changes: {now} answers now, {next_} will. "
                "Workers and web processes need the same EMBEDDINGS_* settings."
            )

    def _show(self, manifest: Manifest, progress: Progress) -> None:
        share = progress.done / progress.total if progress.total else 1.0
        full = int(share * BAR_CHARS)
        failed = f", {progress.failed} failed" if progress.failed else ""
        line = (
            f"manifest {manifest.generation} [{'#' * full}{'.' * (BAR_CHARS - full)}] "
            f"{share:4.0%} {progress.done}/{progress.total}{failed}"
        )
        columns = os.get_terminal_size(self.stderr.fileno()).columns or COLUMNS
        # back to the line's beginning; what was longer is cleared
        self._say(f"\r{line[: columns - 1]}\x1b[K", ending="")
        self.stderr.flush()

    def _end_bar(self) -> None:
        if self._bar:
            self._say("")

    def _say(self, words: str, ending: str = "\n") -> None:
        """Write to standard error what is no error: not in red."""
        self.stderr.write(words, style_func=str, ending=ending)


def _as_dict(rebuilt: Rebuilt) -> dict[str, Any]:
    return {
        "generation": rebuilt.manifest.generation,
        "state": rebuilt.manifest.state,
        "resumed": rebuilt.resumed,
        "total": rebuilt.progress.total,
        "done": rebuilt.progress.done,
        "failed": rebuilt.progress.failed,
        "error_code": rebuilt.error_code.value if rebuilt.error_code else "",
        "withheld": rebuilt.withheld,
        "duration_ms": round(1000 * rebuilt.seconds),
    }


def _sentence(rebuilt: Rebuilt) -> str:
    progress = rebuilt.progress
    counts = f"{progress.done} of {progress.total} messages"
    if rebuilt.activated:
        return (
            f"Manifest {rebuilt.manifest.generation} answers: {counts} have their vector, "
            f"{progress.open} are on their way, {progress.failed} have none, "
            f"in {rebuilt.seconds:.1f} s."
        )
    if rebuilt.manifest.state == Manifest.State.RETIRED:
        return (
            f"Manifest {rebuilt.manifest.generation} was retired before it was complete: "
            "another was begun meanwhile, by a worker that started with other settings or by "
            "another rebuild. See semantic_status."
        )
    if rebuilt.withheld:
        return (
            f"Manifest {rebuilt.manifest.generation} does not take over, as "
            f"{rebuilt.withheld}: {counts} have their vector, "
            f"{progress.failed} failed and are tried again later."
        )
    reason = f" ({rebuilt.error_code.value})" if rebuilt.error_code else ""
    return (
        f"Manifest {rebuilt.manifest.generation} is not complete{reason}: {counts} have their "
        f"vector, {progress.failed} failed and are tried again later."
    )
