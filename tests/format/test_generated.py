"""memwal/format/_generated is what scripts/generate_proto.py makes of proto/memwal.proto today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ROOT / "memwal" / "format" / "_generated"


@pytest.mark.integration
def test_generated_code_is_up_to_date(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "generate_proto.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, timeout=120)

    made = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    kept = {
        file.name: file.read_bytes()
        for file in GENERATED.iterdir()
        if file.is_file() and file.name != "__init__.py"
    }

    assert sorted(made) == ["memwal_pb2.py", "memwal_pb2.pyi"]
    assert kept == made, "run `make proto`"
