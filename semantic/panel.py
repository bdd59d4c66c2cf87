"""The search box on the page: a dialog over everything the person has said and was told."""

from __future__ import annotations

from typing import Final

from semantic import bounds
from turns.panels import Panel

PANEL: Final = Panel(
    key="search",
    bar="semantic/bar.html",
    aside="semantic/dialog.html",
    style="semantic/search.css",
    script="semantic/search.js",
    told={"query_bytes": bounds.QUERY_MAX_BYTES},
)
