"""spark-submit jobs/merge.py TABLE... [options]: `memwal merge` as a Spark application."""

from __future__ import annotations

import sys

from memwal.cli import main

if __name__ == "__main__":
    main(["merge", *sys.argv[1:]])
