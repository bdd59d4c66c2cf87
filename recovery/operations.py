"""What migrations do besides Django's own operations."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

# A trigger goes with its table or by its own name; its function, and the one all of them share,
# would stay behind.
_DROP_UNUSED: Final = r"""
    DO $$ DECLARE unused regprocedure; BEGIN
        FOR unused IN SELECT p.oid FROM pg_proc p
            WHERE p.pronamespace = current_schema()::regnamespace
            AND p.proname LIKE 'pgtrigger\_%'
            AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgfoid = p.oid)
        LOOP EXECUTE 'DROP FUNCTION ' || unused; END LOOP;
        FOR unused IN SELECT p.oid FROM pg_proc p
            WHERE p.pronamespace = current_schema()::regnamespace
            AND p.proname = '_pgtrigger_should_ignore'
            AND NOT EXISTS (SELECT FROM pg_proc WHERE proname LIKE 'pgtrigger\_%')
        LOOP EXECUTE 'DROP FUNCTION ' || unused; END LOOP;
    END $$
"""


class DropUnusedTriggerFunctions(Operation):
    """Taken back, leaves no function of a trigger that is gone. Forwards it does nothing.

    Put it first in a migration that adds triggers: taking back goes through the list from its
    end.
    """

    reversible: ClassVar[bool] = True
    reduces_to_sql: ClassVar[bool] = True

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """The models stay as they are."""

    def database_forwards(self, *_: Any, **__: Any) -> None:
        """There is nothing to drop."""

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Drop what no trigger uses any more."""
        del app_label, from_state, to_state
        schema_editor.execute(_DROP_UNUSED, params=None)

    def describe(self) -> str:
        """Return what `migrate --plan` shows."""
        return "Drop unused trigger functions when taken back"
