"""spark-submit jobs/garbage.py TABLE... [options]: `memwal garbage` as a Spark application."""

from __future__ import annotations

import sys

from memwal.cli import main

if __name__ == "__main__":
    main(["garbage", *sys.argv[1:]])
