"""spark-submit jobs/maintain.py TABLE... [options]: `memwal maintain` as a Spark application."""

from __future__ import annotations

import sys

from memwal.cli import main

if __name__ == "__main__":
    main(["maintain", *sys.argv[1:]])
