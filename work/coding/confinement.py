"""Which files a job's programs may reach, and whether this machine can hold them to it.

A check or command reads what the system installs, the repository it works for and what the
operator adds; it changes its worktree and its own temporary directory. It never reads
HOLDFAST_HOME: secrets, the broker's files and the worktrees of other jobs lie there. Git, which
we run ourselves, reads anything and changes only the repository and the worktree.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final

from django.conf import settings

from work.coding import sandbox
from work.coding.sandbox import Confinement

BEST_EFFORT: Final = "best_effort"

# What a distribution installs, and of /etc what programs need to run. Not the rest of it: as
# root even /etc/shadow would be readable.
_SYSTEM: Final = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store",
    "/gnu/store", "/proc", "/sys", "/dev/random", "/dev/urandom",
)  # fmt: skip
_ETC: Final = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "crypto-policies",
    "debian_version", "fonts", "gai.conf", "gitconfig", "group", "host.conf", "hosts",
    "inputrc", "java", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld.so.preload",
    "locale.alias", "locale.conf", "localtime", "lsb-release", "magic", "magic.mime",
    "mime.types", "nsswitch.conf", "os-release", "passwd", "perl", "pki/ca-trust",
    "pki/tls/certs", "protocols", "resolv.conf", "services", "shells", "ssl/certs",
    "ssl/openssl.cnf", "terminfo", "timezone", "zoneinfo",
)  # fmt: skip
_USUAL_PATH: Final = ("/usr/local/bin", "/usr/bin", "/bin")


class Hold(StrEnum):
    """How far a program that we start can be held to its confinement."""

    WHOLE = "whole"
    PARTIAL = "partial"
    NONE = "none"


def hold() -> Hold:
    """Return what this machine's kernel can do."""
    if sandbox.holds():
        return Hold.WHOLE
    return Hold.PARTIAL if sandbox.abi() else Hold.NONE


def may_run_programs() -> bool:
    """Return whether checks and commands run here: held, or because the operator says so."""
    return hold() == Hold.WHOLE or settings.HOLDFAST_CODING_SANDBOX == BEST_EFFORT


def of_program(
    *, readable: Iterable[Path], own: Iterable[Path] = (), writable: Iterable[Path] = ()
) -> Confinement | None:
    """Return what a check or command may reach, None where nothing can be held at all.

    `own` and `writable` are the job's own places inside HOLDFAST_HOME.
    """
    if hold() == Hold.NONE:
        return None
    home = os.path.realpath(settings.HOLDFAST_HOME)
    return Confinement(
        readable=[*_without([*_system(), *map(str, readable)], home), *map(str, own)],
        writable=[str(path) for path in writable],
    )


def of_searcher(
    *, started_from: Iterable[Path], own: Iterable[Path] = ()
) -> Confinement | None:
    """Return what a program of ours that reads the worktree may reach.

    What it is started from is code: it is open even where it lies inside HOLDFAST_HOME.
    """
    code = [Path(os.path.realpath(path)) for path in started_from]
    home = Path(os.path.realpath(settings.HOLDFAST_HOME))
    inside = [path for path in code if home in path.parents]
    return of_program(readable=code, own=[*own, *inside])


def of_git(*, writable: Iterable[Path]) -> Confinement | None:
    """Return what Git may reach when we run it, None where nothing can be held at all."""
    if hold() == Hold.NONE:
        return None
    return Confinement(readable=["/"], writable=[str(path) for path in writable])


def search_path(confinement: Confinement | None) -> str:
    """Return the worker's PATH as far as programs may read it.

    A shell takes the first program it finds; one that may not be run would end the search.
    """
    wanted = [*os.environ.get("PATH", "").split(os.pathsep), *_USUAL_PATH]
    places = list(dict.fromkeys(place for place in wanted if place.startswith("/")))
    if confinement is not None:
        open_to_it = [Path(path) for path in confinement.readable]
        places = [
            place
            for place in places
            if any(Path(place).resolve().is_relative_to(path) for path in open_to_it)
        ]
    return os.pathsep.join(places)


def _system() -> Iterator[str]:
    yield from _SYSTEM
    yield from (f"/etc/{name}" for name in _ETC)
    yield from settings.HOLDFAST_CODING_READABLE


def _without(paths: Iterable[str], hidden: str) -> Iterator[str]:
    """Yield rules that open the paths but not what is hidden: Landlock only ever opens, so a
    directory above it is replaced by what else lies in it."""
    for path in dict.fromkeys(map(os.path.realpath, paths)):
        if path == hidden or path.startswith(f"{hidden}/"):
            continue
        if path != "/" and not hidden.startswith(f"{path}/"):
            yield path
            continue
        try:
            entries = [entry.path for entry in os.scandir(path) if not entry.is_symlink()]
        except OSError:
            continue
        yield from _without(entries, hidden)
