"""Which machine, which boot, which installation this process belongs to."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path
from typing import Final

from django.conf import settings

_MACHINE_ID_FILES: Final = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
HOST_NAME_MAX_CHARS: Final = 255


def host_name() -> str:
    """Return the name an operator knows this machine by."""
    return platform.node()[:HOST_NAME_MAX_CHARS]


def host_id() -> str:
    """Return what work with local state is bound to: this machine and this HOLDFAST_HOME."""
    machine = next((text for text in map(_read, _MACHINE_ID_FILES) if text), host_name())
    home = Path(settings.HOLDFAST_HOME).resolve()
    return hashlib.sha256(f"{machine}\n{home}".encode()).hexdigest()


def boot_id() -> str:
    """Return what changes when the machine restarts, or an empty text where it is not told."""
    return _read(_BOOT_ID_FILE)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
