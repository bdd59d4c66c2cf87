"""A view of the files in which everything is read-only but what a program may change.

Landlock decides about contents and names; it knows nothing of permissions, owners, times and
extended attributes. On a mount that is read-only those stand still too. It takes a mount
namespace, for which an ordinary account needs a user namespace; where the system allows
neither, there is no such view, and Landlock holds alone.

The standard library only; see `work.coding.sandbox`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_CLONE_NEWNS: Final = 0x0002_0000
_CLONE_NEWUSER: Final = 0x1000_0000
_MS_BIND: Final = 0x1000
_MS_REC: Final = 0x4000
_MS_PRIVATE: Final = 1 << 18
_MOUNT_SETATTR: Final = 442  # the same on every architecture
_AT_FDCWD: Final = -100
_AT_RECURSIVE: Final = 0x8000
_RDONLY: Final = 1

_libc = ctypes.CDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def can_be_read_only() -> bool:
    """Return whether a process here can be given such a view; a child tries it."""
    child = os.fork()
    if not child:
        status = 1
        try:
            make_read_only(())
            status = 0
        except BaseException:  # noqa: BLE001 - whatever it is, the answer is no
            status = 1
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    return status == 0


def make_read_only(writable: Iterable[str]) -> None:
    """Give the calling process a view in which only the writable directories can be changed.

    Raises:
        OSError: the system does not allow it.
    """
    if _libc.unshare(_CLONE_NEWNS) < 0:
        _enter_user_namespace()
    _mount(b"/", b"/", _MS_REC | _MS_PRIVATE)
    places = [os.fsencode(path) for path in writable]
    for place in places:
        _mount(place, place, _MS_BIND | _MS_REC)
    _set_attributes(b"/", _AT_RECURSIVE, _Attributes(set=_RDONLY))
    for place in places:
        _set_attributes(place, 0, _Attributes(clear=_RDONLY))


def _enter_user_namespace() -> None:
    """Become privileged over the view alone, as the same account as before."""
    uid, gid = os.geteuid(), os.getegid()
    _checked(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS))
    own = Path("/proc/self")
    (own / "setgroups").write_text("deny")
    (own / "uid_map").write_text(f"{uid} {uid} 1")
    (own / "gid_map").write_text(f"{gid} {gid} 1")


def _mount(source: bytes, target: bytes, flags: int) -> None:
    _checked(_libc.mount(source, target, None, ctypes.c_ulong(flags), None))


def _set_attributes(target: bytes, flags: int, attributes: _Attributes) -> None:
    _checked(
        _libc.syscall(
            _MOUNT_SETATTR,
            _AT_FDCWD,
            target,
            flags,
            ctypes.byref(attributes),
            ctypes.c_size_t(ctypes.sizeof(attributes)),
        )
    )


def _checked(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
