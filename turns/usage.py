"""Token counts as providers report them. What was not reported is absent, never zero."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping


def add_usages(usages: Iterable[Mapping[str, int] | None]) -> dict[str, int] | None:
    """Return the sum of each count over the `usages` that exist; None when none does."""
    total: Counter[str] | None = None
    for usage in usages:
        if usage is not None:
            total = total if total is not None else Counter()
            total.update(usage)
    return None if total is None else dict(total)
