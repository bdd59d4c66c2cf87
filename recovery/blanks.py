r"""Which texts say nothing: to a reader, and to Python and the database alike.

What the database calls a space in a pattern (`\s`) depends on its locale.
"""

from __future__ import annotations

import unicodedata
from typing import Final

# What `str.strip` takes away.
BLANKS: Final = (
    "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006"
    "\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
# Unicode's control and format characters: joiners, marks of direction, the byte order mark.
INVISIBLE_CATEGORIES: Final = frozenset({"Cc", "Cf"})
# What of other categories Unicode calls Default_Ignorable (fillers, selectors of a variant,
# tags), from the first to the last, and the braille pattern without a dot.
INVISIBLE_RANGES: Final = (
    ("\u034f", "\u034f"),
    ("\u115f", "\u1160"),
    ("\u17b4", "\u17b5"),
    ("\u180b", "\u180f"),
    ("\u2065", "\u2065"),
    ("\u2800", "\u2800"),
    ("\u3164", "\u3164"),
    ("\ufe00", "\ufe0f"),
    ("\uffa0", "\uffa0"),
    ("\ufff0", "\ufff8"),
    ("\U000e0000", "\U000e0fff"),
)
_LITERAL: Final = "".join(f"\\u{ord(blank):04x}" for blank in BLANKS)


def has_words(text: str) -> str:
    """Return the SQL that is true where `text`, of SQL too, is more than blanks."""
    return f"btrim({text}, E'{_LITERAL}') <> ''"


def shows_something(text: str) -> bool:
    """True when a reader would see a character: neither white space nor an invisible mark.

    What shows something has words for the database too. The page judges alike (`blanks.js`).
    """
    return any(map(_is_seen, text))


def _is_seen(character: str) -> bool:
    return not (
        character.isspace()
        or unicodedata.category(character) in INVISIBLE_CATEGORIES
        or any(first <= character <= last for first, last in INVISIBLE_RANGES)
    )
