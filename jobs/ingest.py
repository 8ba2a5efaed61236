"""spark-submit jobs/ingest.py TABLE SOURCE... [options]: `memwal ingest` as a Spark application."""

from __future__ import annotations

import sys

from memwal.cli import main

if __name__ == "__main__":
    main(["ingest", *sys.argv[1:]])
