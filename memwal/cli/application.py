"""`memwal` as a Spark application: what `memwal submit` hands to spark-submit.

spark-submit …/memwal/cli/application.py merge TABLE... [options]
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    del sys.path[0]  # this file's folder: its modules must not be importable by bare names
    from memwal.cli import main

    main(sys.argv[1:])
