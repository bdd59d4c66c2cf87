"""Measures Holdfast on this machine:  python -m tests.benchmarks [NAME …] [--write] [--quick]

Names: sweep, job-sweep, deaths, adoptions, textlog, streams, subscribers, derivation, search,
jobs; all of them when none is given. `--write` puts the numbers into docs/performance.md;
`--quick` runs fewer and shorter rounds, to see that a benchmark works. `jobs` installs the
queues it compares with.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time

from tests.benchmarks import cluster, report

NAMES = (
    "sweep", "job-sweep", "textlog", "streams", "subscribers", "derivation", "search", "deaths",
    "adoptions", "jobs",
)  # fmt: skip


def main() -> int:
    """Return 0 when every goal was met, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="script/bench", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *NAMES], metavar="NAME")
    parser.add_argument("--write", action="store_true", help="rewrite docs/performance.md")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    options = parser.parse_args()

    server = cluster.serve()
    server.create_database("holdfast")
    os.environ["DATABASE_URL"] = server.url("holdfast")
    os.environ.setdefault("LOG_LEVEL", "INFO")
    importlib.import_module("tests.environment")  # the closed environment of a test run
    # only now: they read the settings
    from tests.benchmarks.databases import Databases  # noqa: PLC0415

    databases = Databases(server)
    met = True
    for name in options.names or NAMES:
        began = time.monotonic()
        module = name.replace("-", "_")
        bench = importlib.import_module(f"tests.benchmarks.{module}")
        with databases.use(module) as place:
            lines = bench.run(place, quick=options.quick)
        took = time.monotonic() - began
        sys.stdout.write(f"\n{name} ({took:.0f} s)\n\n{report.table(lines)}\n")
        sys.stdout.flush()
        met = met and all(line.met is not False for line in lines)
        if options.write:
            report.rewrite(name, lines)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
