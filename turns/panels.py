"""What other apps add to a conversation's page: voice, jobs, and whatever comes after them.

An app registers its panel in `AppConfig.ready`. The panel's rows are then read in the same
statement as the conversation's, so the page never sees one without the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, LiteralString


@dataclass(frozen=True, slots=True)
class Panel:
    """One app's part of the page and of the live view.

    `key` is where its objects stand in a snapshot, `frame` the type of the frame that carries
    one of them. `objects_sql` is an expression over the conversation `c` that yields a JSON
    array, newest last, of objects with an `id`; every transition of such an object raises the
    conversation's revision. A `single` panel has one object or none: the last of them.
    `template` is included in the page below the messages, `script` is the ES module that draws
    it: it exports `start(page)`.
    """

    key: str
    frame: str
    objects_sql: LiteralString
    single: bool = False
    template: str = ""
    script: str = ""

    def snapshot(self, objects: list[dict[str, Any]]) -> Any:
        """Return what stands under `key` in a snapshot."""
        if self.single:
            return objects[-1] if objects else None
        return objects


class Panels:
    """The panels of this installation, in the order they were registered."""

    def __init__(self) -> None:
        self._panels: dict[str, Panel] = {}

    def register(self, panel: Panel) -> None:
        """Add a panel.

        Raises:
            ValueError: its key is taken.
        """
        if panel.key in self._panels:
            raise ValueError(f"panel {panel.key} is registered already")
        self._panels[panel.key] = panel

    def __iter__(self) -> Any:
        return iter(self._panels.values())


panels: Final = Panels()
