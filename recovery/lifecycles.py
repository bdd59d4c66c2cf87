"""The legal moves of a durable row, said once in Python and once to the database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from recovery.errors import IllegalTransition


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """States, the moves allowed between them, and which of them are final.

    `moves` maps each state to the states that may follow it; a state that nothing follows is
    terminal.
    """

    moves: Mapping[str, frozenset[str]]

    @property
    def terminal(self) -> frozenset[str]:
        """The states that nothing follows."""
        return frozenset(state for state, after in self.moves.items() if not after)

    @property
    def open(self) -> frozenset[str]:
        """The states that something may follow."""
        return frozenset(self.moves) - self.terminal

    def require(self, state: str, following: str) -> None:
        """Return when `following` may come after `state`.

        Raises:
            IllegalTransition: it may not. Nothing has been written.
        """
        if following not in self.moves[state]:
            raise IllegalTransition(f"{state} -> {following}")

    def violation_sql(self, *, into: frozenset[str] | None = None) -> str:
        """Return SQL that is true for a change of state that is not a legal move.

        With `into` for an update that must leave the row in one of these states: then every
        other state is none, and where all of them end the row it must have come from another.
        """
        legal = " OR ".join(
            f"(OLD.state = '{state}' AND NEW.state IN ({_quoted(after)}))"
            for state, after in sorted(self._moves_into(into))
        )
        illegal = f"NOT ({legal})" if legal else "true"
        stays = into is None or not into <= self.terminal
        return f"OLD.state <> NEW.state AND {illegal}" if stays else illegal

    def _moves_into(self, into: frozenset[str] | None) -> list[tuple[str, frozenset[str]]]:
        limited = [
            (state, after if into is None else after & into)
            for state, after in self.moves.items()
        ]
        return [(state, after) for state, after in limited if after]


def _quoted(states: frozenset[str]) -> str:
    return ", ".join(f"'{state}'" for state in sorted(states))
