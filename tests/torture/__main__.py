"""`python -m tests.torture --seconds N --seed S [--scenario NAME]…`; see README.md."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.torture.actors import HAS_LANCEDB
from tests.torture.run import run_many
from tests.torture.scenarios import SCENARIOS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--round-seconds", type=float, default=20, help="of one table")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--drills", type=int, default=2, help="damages to copies of each table")
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS))
    parser.add_argument("--folder", type=Path, help="for the histories; default: a new one")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="torture-"))
    print(f"seed {given.seed}, histories in {folder}")
    usual = [name for name in SCENARIOS if HAS_LANCEDB or name != "lancedb"]
    verdicts = run_many(
        given.scenario or usual,
        given.seed,
        given.seconds,
        given.round_seconds,
        folder,
        given.drills,
    )
    found = sum(len(verdict.findings) for verdict in verdicts)
    reads = sum(sum(verdict.judged.values()) for verdict in verdicts)
    acked = sum(verdict.acked for verdict in verdicts)
    print(f"{len(verdicts)} tables, {acked} acknowledged, {reads} reads, {found} findings")
    return int(found > 0 or reads == 0)


if __name__ == "__main__":
    sys.exit(main())
