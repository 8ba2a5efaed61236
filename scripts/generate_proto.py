"""Writes memwal/format/_generated/memwal_pb2.py from proto/memwal.proto (`make proto`).

With a folder as argument it writes there instead, which is how a test compares the two.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent


def generate(target: Path) -> None:
    """Run protoc; raises SystemExit when it fails."""
    target.mkdir(parents=True, exist_ok=True)
    status = protoc.main(
        [
            "protoc",
            f"-I{ROOT / 'proto'}",
            f"-I{files('grpc_tools') / '_proto'}",
            f"--python_out={target}",
            f"--pyi_out={target}",
            str(ROOT / "proto" / "memwal.proto"),
        ]
    )
    if status != 0:
        raise SystemExit(f"protoc failed with status {status}")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "memwal" / "format" / "_generated")
