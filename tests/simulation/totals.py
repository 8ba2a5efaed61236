"""What all recorded runs add up to: where the next one starts, and the table in README.md."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.simulation.explore import Explored

HERE = Path(__file__).parent
FILE, PAGE = HERE / "totals.json", HERE / "README.md"
_BEGIN, _END = "<!-- totals.json -->\n", "<!-- end -->\n"


@dataclass(kw_only=True)
class Totals:
    """Sums over runs. `injected` are faults by kind, `found` failed seeds by what was broken."""

    next_seed: int = 0
    seeds: int = 0
    steps: int = 0
    audits: int = 0
    injected: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)

    @classmethod
    def load(cls, file: Path = FILE) -> Totals:
        """Of all runs until now."""
        known: dict[str, Any] = json.loads(file.read_text())
        known["injected"], known["found"] = Counter(known["injected"]), Counter(known["found"])
        return cls(**known)

    def add(self, explored: Explored) -> None:
        """One more run, of the seeds from `next_seed` on."""
        self.next_seed += explored.seeds
        self.seeds += explored.seeds
        self.steps += explored.steps
        self.audits += explored.checks
        self.injected += explored.injected
        self.found += Counter(map(find_layer, explored.failures.values()))

    def store(self, file: Path = FILE, page: Path = PAGE) -> None:
        """In the file, and in the page."""
        known = self.__dict__ | {name: dict(sorted(getattr(self, name).items())) for name in _MAPS}
        file.write_text(json.dumps(known, indent=1) + "\n")
        before, rest = page.read_text().split(_BEGIN)
        page.write_text(before + _BEGIN + self.table() + _END + rest.split(_END)[1])

    def table(self) -> str:
        """For the page."""
        return (
            "| | |\n|---|---|\n"
            f"| seeds | {self.seeds:,}; the next run starts at {self.next_seed:,} |\n"
            f"| steps, audits | {self.steps:,}, {self.audits:,} |\n"
            f"| faults injected | {_list(self.injected)} |\n"
            f"| failed seeds, by what was broken | {_list(self.found)} |\n"
        )


_MAPS = ("injected", "found")


def find_layer(failure: str) -> str:
    """What a violation is of: an invariant by its number, a command, or none of these."""
    last = failure.strip().splitlines()[-1].removeprefix("tests.simulation.scheduler.Violation: ")
    layer, colon, _ = last.partition(": ")
    if not colon:
        return "others"
    return f"invariant {layer}" if layer.isdigit() else layer


def _list(counts: Counter[str]) -> str:
    found = (f"{count:,} {name.replace('_', ' ')}" for name, count in sorted(counts.items()))
    return ", ".join(found) or "none"
