"""Secrets of the embedded installation, generated once and read ever after."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from config.embedded.paths import Home


def secret(home: Home, name: str, *, random_bytes: int = 48) -> str:
    """Return the secret `name` of this installation, made on first use with mode 0600.

    Two processes that ask at the same time get the same answer: the first complete file wins.
    """
    path = home.secrets / name
    with contextlib.suppress(FileNotFoundError):
        return path.read_text().strip()
    home.prepare()
    fresh = path.with_name(f"{name}.{secrets.token_hex(8)}")
    write_private(fresh, secrets.token_urlsafe(random_bytes))
    with contextlib.suppress(FileExistsError):
        os.link(fresh, path)
    fresh.unlink()
    return path.read_text().strip()


def write_private(path: Path, text: str) -> None:
    """Write `text` to a file that only its owner may read, replacing it in one step."""
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    partial.replace(path)
