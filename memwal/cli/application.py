"""`memwal` as a Spark application: what `memwal submit` hands to spark-submit.

spark-submit …/memwal/cli/application.py merge TABLE... [options]
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    del sys.path[0]  # this file's folder, whose modules are not to be found by bare names
    from memwal.cli import main

    main(sys.argv[1:])
