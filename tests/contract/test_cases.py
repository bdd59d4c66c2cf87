"""Every case of the two lists that is about what is built here has a test or a reason.

A test follows a case when its docstring names it: `failure H07`, `behaviours C5, AD11`.
docs/cases.md lists the cases that no test follows, each with its reason.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

# The lists have gaps; these are the numbers there are. Behaviours G to N, R to T and W to AC
# are about voice, recordings, paired computers and data rights, and come with them.
FAILURES: Final = {f"H{number:02}" for number in range(1, 86)}
BEHAVIOURS: Final = {
    f"{letters}{number}"
    for letters, numbers in {
        "A": (1, 2, 4, 5, 7, 8, 10, 11, 13, 14),
        "B": (1, 2, 4, 5, 7),
        "C": (1, 2, 4, 5, 7, 8, 10, 11),
        "D": (1, 2, 4, 5, 7, 8),
        "E": (1, 2, 4, 5, 7, 8, 10, 11, 13),
        "F": (1, 2, 4, 5, 7, 8),
        "O": (1, 2, 4, 5, 7, 8, 10, 11, 13, 14),
        "P": (1, 2, 4, 5, 7, 8, 10),
        "Q": (1, 2, 4),
        "U": (1, 2, 4, 5, 7, 8, 10, 11),
        "V": (1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17),
        "AD": (1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 18, 20, 21),
    }.items()
    for number in numbers
}
NAMED: Final = re.compile(
    r"\b(failure|behaviour)s? ([A-Z]{1,2}\d+(?:(?:,\s+|\s+and\s+)[A-Z]{1,2}\d+)*)",
    re.IGNORECASE,
)
# a row of a table in docs/cases.md that begins with case numbers
LISTED: Final = re.compile(r"^\| ([A-Z]{1,2}\d+(?:, [A-Z]{1,2}\d+)*) \|", re.MULTILINE)
COUNTED: Final = re.compile(r"^(\d+) (failure|behaviour)s?\.$", re.MULTILINE)


def group_of(case: str) -> str:
    """Return the letters of a case's number."""
    return case.rstrip("0123456789")


def followed() -> tuple[set[str], set[str]]:
    """Return the failures and the behaviours that docstrings of tests name."""
    cases: dict[str, set[str]] = {"failure": set(), "behaviour": set()}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                if not node.name.lower().startswith(("test", "the_next_request")):
                    continue
                for kind, numbers in NAMED.findall(ast.get_docstring(node) or ""):
                    cases[kind.lower()] |= set(re.findall(r"[A-Z]{1,2}\d+", numbers))
    return cases["failure"], cases["behaviour"]


def listed() -> tuple[list[str], list[str]]:
    """Return the failures and the behaviours that docs/cases.md gives a reason for."""
    page = (ROOT / "docs" / "cases.md").read_text()
    cases = [case for row in LISTED.findall(page) for case in row.split(", ")]
    failures = [case for case in cases if case in FAILURES]
    return failures, [case for case in cases if case not in FAILURES]


def test_every_case_is_followed_by_a_test_or_listed_with_its_reason_and_never_both() -> None:
    for known, tested, reasoned in zip(
        (FAILURES, BEHAVIOURS), followed(), listed(), strict=True
    ):
        assert sorted(known - tested - set(reasoned)) == [], "neither tested nor listed"
        assert sorted(tested & set(reasoned)) == [], "tested and listed"
        assert sorted(set(reasoned) - known) == [], "listed, and there is no such case"
        groups = {group_of(case) for case in known}
        invented = {case for case in tested - known if group_of(case) in groups}
        assert sorted(invented) == [], "tested, and there is no such case"
        assert len(reasoned) == len(set(reasoned)), "listed twice"


def test_the_list_counts_itself() -> None:
    page = (ROOT / "docs" / "cases.md").read_text()
    counts = {"failure": 0, "behaviour": 0}
    for count, kind in COUNTED.findall(page):
        counts[kind] += int(count)
    failures, behaviours = listed()
    assert counts == {"failure": len(failures), "behaviour": len(behaviours)}
