"""Takes the database of its environment through migrations, as it is told.

Reads one JSON command a line. `migrate` runs the management command once for each target.
`walk` reads the catalogue after each migration of a plan: a plan for every single one, or a
process, would cost far more than the migrations do.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import django
from django.core.management import call_command
from django.db import connection
from django.db.migrations import Migration
from django.db.migrations.executor import MigrationExecutor


def migrate(targets: list[list[str]]) -> dict[str, Any]:
    """Run the command for each target: an app and a name, or nothing for the newest of all."""
    for target in targets:
        call_command("migrate", *target, verbosity=0)
    return {}


def walk(apps: list[str], *, back: bool, read: str) -> dict[str, Any]:
    """Take all migrations of these apps, in this order, or take all of them back.

    Returns, for each migration, which it was and what `read` selects once it is committed.
    """
    steps: list[tuple[str, list[str]]] = []

    def look(action: str, migration: Migration | None = None, *_: object) -> None:
        if migration is not None and action in {"apply_success", "unapply_success"}:
            with connection.cursor() as cursor:
                cursor.execute(read)
                seen = [row[0] for row in cursor.fetchall()]
            steps.append((f"{migration.app_label} {migration.name}", seen))

    executor = MigrationExecutor(connection, look)
    for app in apps:
        executor.migrate([(app, None)] if back else executor.loader.graph.leaf_nodes(app))
        executor.loader.build_graph()
    return {"steps": steps}


def main() -> None:
    """Do what each line says; say what came of it."""
    django.setup()
    for line in sys.stdin:
        command = json.loads(line)
        does = walk if command.pop("do") == "walk" else migrate
        print(json.dumps({"event": "done", **does(**command)}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
