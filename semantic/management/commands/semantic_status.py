"""`manage.py semantic_status`: how far search by meaning is, and what holds it up."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandParser

from recovery.commands import OperatorCommand
from semantic.status import ManifestStatus, read_status


class Command(OperatorCommand):
    """Shows each manifest that answers or is being built. Changes nothing."""

    help = (
        "Show the manifests that answer or are being built: how many messages have their "
        "vector, wait, are leased, failed or are stale, and whether there is an index. "
        "Exit status: 0 everything that can be found is found, 1 something is missing, waits, "
        "failed or is stale, or no manifest answers."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the form."""
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *_args: object, **options: Any) -> None:
        """Print a paragraph a manifest."""
        status = read_status()
        if options["json"]:
            self.stdout.write(json.dumps(status.as_dict()))
        else:
            for manifest in status.manifests:
                self.stdout.write(_paragraph(manifest))
            if not status.manifests:
                self.stdout.write("There is no manifest yet: a starting worker begins it.")
        if not status.is_complete:
            raise SystemExit(1)


def _paragraph(manifest: ManifestStatus) -> str:
    name = f"{manifest.provider} {manifest.model}, {manifest.dimensions} dimensions"
    failures = ", ".join(f"{count} {code}" for code, count in manifest.failures.items())
    withheld = f"\n    it does not take over: {manifest.withheld}" if manifest.withheld else ""
    return (
        f"manifest {manifest.generation}  {manifest.state}  {name}\n"
        f"    {manifest.done} of {manifest.total} messages have their vector, "
        f"{manifest.queued} wait, {manifest.leased} are at work, "
        f"{manifest.expired} were left by their worker\n"
        f"    failed: {failures or 'none'}; stale: {manifest.stale}; "
        f"{'with' if manifest.has_index else 'without'} an index{withheld}"
    )
