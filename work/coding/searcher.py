"""Looks for a text or a pattern in files, in a process of its own.

A pattern can take for ever, and Python cannot be told to give it up; a process can be ended. It
reads the names of the files from a file, opens them without following links, and prints hits.

Started by its path, in an interpreter that knows the standard library alone. As a module of the
package it would not be found where HOLDFAST_HOME lies in the checkout: Python lists a directory
that it looks for a package in, and that one is closed then.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent))
    import nofollow  # type: ignore[import-not-found, unused-ignore]
else:
    from work.coding import nofollow

NOT_A_PATTERN: Final = 3
# What is said, after their number, of files that are not looked at.
_NOT_OPENED: Final = {
    nofollow.Why.LINK: "linked (links are not followed)",
    nofollow.Why.NESTED: "in another repository",
    nofollow.Why.SPECIAL: "no ordinary file",
    nofollow.Why.HARD_LINK: "with another name elsewhere",
}
_UNREADABLE: Final = "unreadable"
_LOOKED_AT_BYTES: Final = 8 * 1024


@dataclass(frozen=True, slots=True)
class Search:
    """What is looked for, where, and how much is said of it."""

    root: str
    names: list[str]
    pattern: str
    is_regex: bool
    ignore_case: bool
    hits: int
    line_bytes: int
    file_bytes: int

    def encode(self) -> bytes:
        """Return the text of the file that carries it."""
        return json.dumps(asdict(self)).encode()


def search(asked: Search) -> Iterator[str]:
    """Yield a line for each hit, then one that sums up."""
    flags = re.IGNORECASE if asked.ignore_case else 0
    source = asked.pattern if asked.is_regex else re.escape(asked.pattern)
    pattern = re.compile(source, flags)
    root = os.open(asked.root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = looked_at = 0
    left_out = Counter[str]()
    for name in asked.names:
        data = _read(root, name, asked.file_bytes)
        if isinstance(data, str):
            left_out[data] += 1
            continue
        looked_at += 1
        for number, line in enumerate(data.splitlines(), start=1):
            if not pattern.search(line.decode(errors="surrogateescape")):
                continue
            if found == asked.hits:
                yield f"[there are more than {found} hits: ask more narrowly]"
                return
            found += 1
            yield f"{_plain(name)}:{number}:{_shown(line, asked.line_bytes)}"
    said = f"{_counted(found, 'hit')} in {_counted(looked_at, 'file')}"
    others = ", ".join(f"{number} {why}" for why, number in left_out.items())
    yield f"[{said}; not searched: {others}]" if others else f"[{said}]"


def _counted(number: int, one: str) -> str:
    """As `recovery.counting` says it, which is not to be had here."""
    return f"{number} {one}" if number == 1 else f"{number} {one}s"


def _read(root: int, name: str, most: int) -> bytes | str:
    """Return what the file holds, or why it is not looked at."""
    names = name.split("/")
    try:
        with nofollow.directory(root, names[:-1]) as parent:
            descriptor = nofollow.open_file(names[-1], parent)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(most + 1)
    except nofollow.OutOfBounds as refused:
        return _NOT_OPENED.get(refused.why, _UNREADABLE)
    except (FileNotFoundError, NotADirectoryError):
        return "not there"
    except IsADirectoryError:  # a submodule, say
        return _NOT_OPENED[nofollow.Why.SPECIAL]
    except OSError:
        return _UNREADABLE
    if len(data) > most:
        return "too large"
    return "no text" if b"\0" in data[:_LOOKED_AT_BYTES] else data


def _plain(name: str) -> str:
    """Return the name as one line, as the other tools show it."""
    text = os.fsencode(name).decode(errors="replace")
    return "".join(one if one.isprintable() else "\ufffd" for one in text)


def _shown(line: bytes, most: int) -> str:
    cut = line[:most].decode(errors="ignore" if len(line) > most else "replace")
    return f"{cut} [cut]" if len(line) > most else cut


def main() -> int:
    """Print the hits of the search that the file named on the command line describes."""
    asked = Search(**json.loads(Path(sys.argv[1]).read_bytes()))
    try:
        for line in search(asked):
            sys.stdout.buffer.write(line.encode(errors="replace") + b"\n")
    except (re.error, OverflowError):  # the latter for a number of repeats past all bounds
        return NOT_A_PATTERN
    return 0


if __name__ == "__main__":
    sys.exit(main())
