"""What other apps add to a conversation's page: voice, jobs, and whatever comes after them.

An app registers its panel in `AppConfig.ready`. The panel's rows are then read in the same
statement as the conversation's, so the page never sees one without the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString

Object = dict[str, Any]


def as_it_is(one: Object) -> Sequence[Object]:
    """Return the only form there is of a small object."""
    return [one]


@dataclass(frozen=True, slots=True)
class Panel:
    """One app's part of the live view and of the page. Without `objects_sql`, of the page only.

    In the live view, `key` is where its objects stand in a snapshot, and `frame` the type of
    the frame that carries one of them. Its SQL is about the conversation `c`, for a view that
    has seen revision `s.revision` of it: 0 for a snapshot, which begins anew. Every transition
    of an object raises the conversation's revision.

    `objects_sql` is an expression that yields a JSON array of objects with an `id`, the most
    important last. A view that missed more than `most` of them is shown a snapshot. A `single`
    panel has one object or none: the last of them. `messages_sql` selects the ids of messages
    without a turn that the app has added since; `about_sql` is an expression over such a
    message `m` that yields what the page says about it ({type, id, label, title, state}), NULL
    for one of another app. `active_sql` is a condition that holds while something of the app
    goes on in `c`: the list of conversations marks it.

    `variants` gives the forms of an object, from the fullest to one that always fits into a
    frame; the first `heavy` of them are too large for a snapshot.

    On the page, `bar` is included in its header, `template` below the messages and `aside`
    beside them. `style` is a sheet; `script` the ES module that draws the panel. It exports
    `start(page, told)`, and is handed what is `told` here; until that has returned, the panel's
    controls are disabled.
    """

    key: str
    frame: str = ""
    objects_sql: LiteralString = ""
    single: bool = False
    most: int | None = None
    messages_sql: LiteralString = ""
    about_sql: LiteralString = ""
    active_sql: LiteralString = ""
    variants: Callable[[Object], Sequence[Object]] = as_it_is
    heavy: int = 0
    bar: str = ""
    template: str = ""
    aside: str = ""
    style: str = ""
    script: str = ""
    told: Mapping[str, Any] = field(default_factory=dict)

    def snapshot(self, objects: Sequence[Object]) -> Any:
        """Return what stands under `key` in a snapshot."""
        if self.single:
            return objects[-1] if objects else None
        return list(objects)


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

    def __iter__(self) -> Iterator[Panel]:
        return iter(self._panels.values())

    def live(self) -> Iterator[Panel]:
        """Those that have a part in the live view."""
        return (panel for panel in self if panel.objects_sql)


panels: Final = Panels()
