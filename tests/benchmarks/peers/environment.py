"""The interpreter of the peers: made from requirements-bench.lock, and only for this."""

from __future__ import annotations

import subprocess
from typing import Final

from tests.support.processes import ROOT

DIRECTORY: Final = ".venv-bench"


def interpreter() -> str:
    """Return the path of a Python that has the peers, installed now if need be."""
    subprocess.run(
        ["script/bootstrap", "requirements-bench.lock", DIRECTORY], cwd=ROOT, check=True
    )
    return str(ROOT / DIRECTORY / "bin" / "python")
