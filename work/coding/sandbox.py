"""What the kernel lets a guarded program do, decided between fork and exec.

Layers, none of which can be taken off again: no new privileges and no capabilities; Landlock,
which opens the named directories and nothing else, and closes TCP and signals to others; a
filter of system calls for what Landlock does not know (`work.coding.syscalls`); and, where the
system allows it, a view of the files that is read-only (`work.coding.mounts`).

Run by the launcher, before any module of Django: the standard library only. It needs a process
with one thread.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from work.coding import mounts, syscalls

# linux/landlock.h; the three calls have the same numbers on every architecture
_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_CREATE_RULESET_VERSION: Final = 1
_RULE_PATH_BENEATH: Final = 1

EXECUTE: Final = 1 << 0
WRITE_FILE: Final = 1 << 1
READ_FILE: Final = 1 << 2
READ_DIR: Final = 1 << 3
_REMOVE_AND_MAKE: Final = 0b1_1111_1111 << 4  # REMOVE_DIR to MAKE_SYM
_MAKE_CHAR: Final = 1 << 6
_MAKE_BLOCK: Final = 1 << 11
_REFER: Final = 1 << 13
_TRUNCATE: Final = 1 << 14
_IOCTL_DEV: Final = 1 << 15
# what each version of the interface added to the rights of files
_RIGHTS_BY_ABI: Final = {1: (1 << 13) - 1, 2: _REFER, 3: _TRUNCATE, 5: _IOCTL_DEV}
_RIGHTS_OF_A_FILE: Final = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE | _IOCTL_DEV
_NET_ABI: Final = 4
_BIND_AND_CONNECT_TCP: Final = 0b11
_SCOPE_ABI: Final = 6
_ABSTRACT_SOCKETS_AND_SIGNALS: Final = 0b11

READ: Final = READ_FILE | READ_DIR | EXECUTE
CHANGE: Final = (
    READ | WRITE_FILE | _REMOVE_AND_MAKE & ~_MAKE_CHAR & ~_MAKE_BLOCK | _REFER | _TRUNCATE
)
USE_DEVICE: Final = READ_FILE | WRITE_FILE

# The first version that keeps a program from signalling ours. Below it, and without the filter
# of system calls, a program is not held.
WHOLE_ABI: Final = _SCOPE_ABI

_PR_SET_PDEATHSIG: Final = 1
_PR_CAPBSET_DROP: Final = 24
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_CAPABILITY_VERSION_3: Final = 0x2008_0522
_CAPABILITIES_MAX: Final = 64

_libc = ctypes.CDLL(None, use_errno=True)


class _RulesetAttr(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


@dataclass(frozen=True, slots=True)
class Confinement:
    """Which paths a program may read (and run), change, and use as devices; nothing else."""

    readable: Sequence[str]
    writable: Sequence[str]
    devices: Sequence[str] = ("/dev/null", "/dev/zero", "/dev/full")


def abi() -> int:
    """Return the version of Landlock that this kernel offers; 0 where there is none."""
    try:
        version = _libc.syscall(_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION)
    except AttributeError:  # no syscall(): not Linux
        return 0
    return max(0, int(version))


def holds() -> bool:
    """Return whether the layers are there without which a program is not held."""
    return abi() >= WHOLE_ABI and syscalls.known()


def enforce(confinement: Confinement, *, read_only_view: bool) -> None:
    """Put all layers that this kernel has on the calling process, for good.

    Raises:
        OSError: one that the kernel has was not taken. The caller must not go on.
    """
    if read_only_view:
        mounts.make_read_only(confinement.writable)
    _drop_capabilities()
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if abi():
        _restrict(confinement, abi())
    syscalls.forbid()


def become_subreaper() -> None:
    """Make the orphans among our descendants our children, so that none is lost sight of."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(death_signal: int) -> None:
    """Have the kernel signal this process when the thread that forked it ends."""
    _prctl(_PR_SET_PDEATHSIG, death_signal)


def _restrict(confinement: Confinement, version: int) -> None:
    handled = 0
    for since, rights in _RIGHTS_BY_ABI.items():
        handled |= rights if version >= since else 0
    attr = _RulesetAttr(
        handled_access_fs=handled,
        handled_access_net=_BIND_AND_CONNECT_TCP if version >= _NET_ABI else 0,
        scoped=_ABSTRACT_SOCKETS_AND_SIGNALS if version >= _SCOPE_ABI else 0,
    )
    # An older kernel takes the longer structure where what it does not know is zero.
    ruleset = _checked(
        _libc.syscall(_CREATE_RULESET, ctypes.byref(attr), ctypes.sizeof(attr), 0)
    )
    try:
        _allow(ruleset, confinement.readable, READ & handled)
        _allow(ruleset, confinement.writable, CHANGE & handled)
        _allow(ruleset, confinement.devices, USE_DEVICE & handled)
        _checked(_libc.syscall(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, paths: Iterable[str], rights: int) -> None:
    for path in paths:
        try:
            # A link is not followed: the rule would open whatever it leads to.
            beneath = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            mode = os.fstat(beneath).st_mode
            if stat.S_ISLNK(mode):
                continue
            allowed = rights if stat.S_ISDIR(mode) else rights & _RIGHTS_OF_A_FILE
            rule = _PathBeneathAttr(allowed_access=allowed, parent_fd=beneath)
            _checked(
                _libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
            )
        finally:
            os.close(beneath)


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def _drop_capabilities() -> None:
    """Give up what makes root more than the owner of its files; nobody else has any."""
    for capability in range(_CAPABILITIES_MAX):
        # EINVAL: past the last one; EPERM: not ours to drop, so nothing to lose
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    none = (ctypes.c_uint32 * 6)()
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(ctypes.byref(header), ctypes.byref(none)))


def _prctl(option: int, argument: int) -> None:
    _checked(_libc.prctl(option, argument, 0, 0, 0))


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno() or errno.EPERM
        raise OSError(code, os.strerror(code))
    return int(result)
