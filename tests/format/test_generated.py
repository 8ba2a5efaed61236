"""memwal/format/_generated is what scripts/generate_proto.py makes of proto/memwal.proto today."""

from __future__ import annotations

from pathlib import Path

from scripts.generate_proto import ROOT, generate


def test_generated_code_is_up_to_date(tmp_path: Path) -> None:
    generate(tmp_path)
    made = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    kept = {f.name: f.read_bytes() for f in (ROOT / "memwal/format/_generated").glob("memwal_pb2*")}
    assert sorted(made) == ["memwal_pb2.py", "memwal_pb2.pyi"]
    assert kept == made, "run `make proto`"
