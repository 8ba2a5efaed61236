"""`python -m tests.drills [--drills N] [--first S] [--seed S] [--no-repair]`; see README.md."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.drills.run import FINDINGS, run_many, show


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.drills", description=__doc__)
    parser.add_argument("--drills", type=int, default=1000)
    parser.add_argument("--seed", type=int, help="do this one only, and show all of it")
    parser.add_argument("--first", type=int, default=int(time.time()), help="seed of the first")
    parser.add_argument("--no-repair", action="store_true", help="only verify and read")
    parser.add_argument("--folder", type=Path, help="for tables and outcomes; default: a new one")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="drills-"))
    first, count = (given.first, given.drills) if given.seed is None else (given.seed, 1)
    print(f"seeds from {first}, outcomes in {folder}/outcomes.jsonl")
    verdicts: Counter[str] = Counter()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "outcomes.jsonl").open("a") as kept:
        for outcome in run_many(range(first, first + count), folder, repairs=not given.no_repair):
            verdicts[outcome["verdict"]] += 1
            print(json.dumps(outcome), file=kept, flush=True)
            if given.seed is not None or outcome["verdict"] in FINDINGS:
                print(show(outcome))
    print(", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()))
    return int(bool(FINDINGS & verdicts.keys()))


if __name__ == "__main__":
    sys.exit(main())
