"""spark-submit jobs/compaction.py TABLE... [options]: `memwal compaction` on Spark."""

from __future__ import annotations

import sys

from memwal.cli import main

if __name__ == "__main__":
    main(["compaction", *sys.argv[1:]])
