"""The Containerfile, read: its stages, and the steps that make a target."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dockerfile_parse import DockerfileParser

FILE = Path(__file__).resolve().parents[2] / "Containerfile"


@dataclass(frozen=True, kw_only=True)
class Stage:
    name: str
    parent: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def values(self, instruction: str) -> list[str]:
        return [value for name, value in self.steps if name == instruction]


def read_stages() -> dict[str, Stage]:
    found: dict[str, Stage] = {}
    for step in DockerfileParser(fileobj=io.BytesIO(FILE.read_bytes())).structure:
        name, value = step["instruction"], step["value"]
        if name == "FROM":
            parent, _, stage = value.partition(" AS ")
            found[stage] = Stage(name=stage, parent=parent)
        elif found and name != "COMMENT":
            list(found.values())[-1].steps.append((name, value))
    return found


STAGES = read_stages()


def steps_of(stage: str) -> Iterator[tuple[str, str]]:
    """Those of what it builds on, and of what it copies from, come first."""
    if stage not in STAGES:
        return
    yield from steps_of(STAGES[stage].parent)
    for instruction, value in STAGES[stage].steps:
        if source := re.match(r"--from=(\S+) (\S+) (\S+)$", value):
            assert source[2] == source[3], "an environment can't be moved"
            yield from steps_of(source[1])
        else:
            yield instruction, value


def last(stage: str, instruction: str) -> str:
    return [value for name, value in steps_of(stage) if name == instruction][-1]
