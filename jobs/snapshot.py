"""spark-submit jobs/snapshot.py TABLE... [options]: `memwal snapshot` as a Spark application."""

from __future__ import annotations

import sys

from memwal.cli import main

if __name__ == "__main__":
    main(["snapshot", *sys.argv[1:]])
