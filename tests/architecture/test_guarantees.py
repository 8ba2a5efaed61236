"""The page of guarantees cites tests and models that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "memwal" / "GUARANTEES.md").read_text()


def test_cited_tests_exist() -> None:
    cited = re.findall(r"`(tests/[\w/]+(?:\.py)?)(?:::(\w+))?`", PAGE)
    assert len(cited) > 20
    missing = [
        f"{path}::{name}"
        for path, name in cited
        if not (ROOT / path).exists() or (name and f"def {name}(" not in (ROOT / path).read_text())
    ]
    assert missing == []


def test_cited_models_exist() -> None:
    variants = (ROOT / "tests" / "model" / "check.py").read_text()
    cited = re.findall(r'model:\s+(\w+)(?:,\s+"([^"]+)")?', PAGE)
    assert len(cited) > 5
    assert [m for m, _ in cited if not (ROOT / "tests" / "model" / f"{m}.pml").exists()] == []
    assert [name for _, name in cited if " ".join(name.split()) not in variants] == []
