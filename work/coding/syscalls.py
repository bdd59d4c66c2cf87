"""System calls that a guarded program may not make, as a seccomp filter.

It closes what Landlock leaves open: every socket (UDP, and the sockets by which a database, a
container engine or a desktop listens on this machine), new namespaces, the memory and limits of
other processes, kernel keys and the like. Pairs of sockets and pipes work: they lead nowhere.

The standard library only; see `work.coding.sandbox`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from typing import Final

# name: its number on x86_64 and on aarch64 (asm/unistd_64.h, asm-generic/unistd.h)
_FORBIDDEN: Final = {
    "socket": (41, 198),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "mount_setattr": (442, 442),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "shmget": (29, 194),
    "shmctl": (31, 195),
    "shmat": (30, 196),
    "semget": (64, 190),
    "semctl": (66, 191),
    "msgget": (68, 186),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
}
# Programs and libraries that find these missing use what they used before.
_MISSING: Final = {
    "io_uring_setup": (425, 425),
    # its flags lie in memory, where a filter cannot read them
    "clone3": (435, 435),
}
_CLONE: Final = (56, 220)
# CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_NEW_NAMESPACES: Final = 0x7E02_0080
_PRLIMIT64: Final = (302, 261)
# struct seccomp_data: nr, arch, instruction pointer, six arguments of 64 bits
_NUMBER_AT: Final = 0
_ARCHITECTURE_AT: Final = 4
_FIRST_ARGUMENT_AT: Final = 16
# bit of every number of the x32 calling convention, which would pass the comparisons
_X32: Final = 0x4000_0000

_LOAD: Final = 0x20
_JUMP_IF_EQUAL: Final = 0x15
_JUMP_IF_AT_LEAST: Final = 0x35
_JUMP_IF_ANY_BIT: Final = 0x45
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF_0000
_FAIL: Final = 0x0005_0000

_PR_SET_SECCOMP: Final = 22
_MODE_FILTER: Final = 2
# AUDIT_ARCH_X86_64 and AUDIT_ARCH_AARCH64, and which of the two numbers counts
_ARCHITECTURES: Final = {"x86_64": (0xC000_003E, 0), "aarch64": (0xC000_00B7, 1)}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def known() -> bool:
    """Return whether there is a filter for this machine."""
    return sys.platform == "linux" and platform.machine() in _ARCHITECTURES


def forbid() -> None:
    """Put the filter on the calling process, for good; it must have given up new privileges.

    Raises:
        OSError: the kernel did not take it.
    """
    if not known():
        return
    code = _program(platform.machine())
    program = _Program(len(code) // 8, code)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _program(machine: str) -> bytes:
    architecture, column = _ARCHITECTURES[machine]
    code = [
        _instruction(_LOAD, _ARCHITECTURE_AT),
        *_unless(_JUMP_IF_EQUAL, architecture, errno.EPERM),
        _instruction(_LOAD, _NUMBER_AT),
        *_when(_JUMP_IF_AT_LEAST, _X32, errno.EPERM),
    ]
    for numbers in _FORBIDDEN.values():
        code += _when(_JUMP_IF_EQUAL, numbers[column], errno.EPERM)
    for numbers in _MISSING.values():
        code += _when(_JUMP_IF_EQUAL, numbers[column], errno.ENOSYS)
    code += [
        _instruction(_JUMP_IF_EQUAL, _CLONE[column], 0, 3),
        _instruction(_LOAD, _FIRST_ARGUMENT_AT),
        *_when(_JUMP_IF_ANY_BIT, _NEW_NAMESPACES, errno.EPERM),
        _instruction(_LOAD, _NUMBER_AT),
        # limits of one's own process alone: the first argument is 0
        _instruction(_JUMP_IF_EQUAL, _PRLIMIT64[column], 0, 3),
        _instruction(_LOAD, _FIRST_ARGUMENT_AT),
        *_unless(_JUMP_IF_EQUAL, 0, errno.EPERM),
        _instruction(_RETURN, _ALLOW),
    ]
    return b"".join(code)


def _when(jump: int, value: int, code: int) -> list[bytes]:
    return [_instruction(jump, value, 0, 1), _instruction(_RETURN, _FAIL | code)]


def _unless(jump: int, value: int, code: int) -> list[bytes]:
    return [_instruction(jump, value, 1, 0), _instruction(_RETURN, _FAIL | code)]


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
