"""spark-submit jobs/backfill.py TABLE... [options]: `memwal backfill` as a Spark application."""

from __future__ import annotations

import sys

from memwal.cli import main

if __name__ == "__main__":
    main(["backfill", *sys.argv[1:]])
