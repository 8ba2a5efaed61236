"""spark-submit jobs/index_catchup.py TABLE... [options]: `memwal index-catchup` on Spark."""

from __future__ import annotations

import sys

from memwal.cli import main

if __name__ == "__main__":
    main(["index-catchup", *sys.argv[1:]])
