"""That each mutation still changes what it says."""

from __future__ import annotations

from pathlib import Path

from tests.mutation.groups import read_all

ROOT = Path(__file__).resolve().parents[2]


def test_every_mutation_has_its_place() -> None:
    mutations = read_all()
    for mutation in mutations:
        for change in mutation.changes:
            text = (ROOT / change.file).read_text()
            assert text.count(change.before) == 1, f"{mutation.name}: {change.file}"
            assert change.after != change.before, mutation.name
        paths = [word for word in mutation.tests.split() if word.startswith("tests/")]
        assert all((ROOT / path).exists() for path in paths), mutation.name
    assert len({m.name for m in mutations}) == len(mutations)
