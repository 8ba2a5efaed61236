"""Checks the formal models: what is safe holds exhaustively, each unsafe variant has a trail.

`make model` runs everything and prints a table; the tests run what is small. A safe variant is
searched depth first to the end; an unsafe one breadth first, so that its trail is a shortest one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SEARCH_SECONDS_MAX = 600
MEMORY_MB_MAX = 4000
DEPTH_MAX = 100_000


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A model and its switches, as variants.toml has them."""

    model: str
    name: str
    switches: tuple[str, ...] = ()
    safe: bool = False
    deep: bool = False
    quick: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a search found. `trail` is a counterexample, readable; empty where there is none."""

    states: int
    depth: int
    seconds: float
    complete: bool
    violated: str | None
    trail: tuple[str, ...]

    def is_as_expected(self, variant: Variant) -> bool:
        """Safe: searched to the end and nothing found. Unsafe: an assertion fails, with a trail."""
        if variant.safe:
            return self.complete and self.violated is None
        return self.violated is not None and "assertion" in self.violated and len(self.trail) > 0


def _read_variants() -> Iterator[Variant]:
    for model, named in tomllib.loads((HERE / "variants.toml").read_text()).items():
        for name, text in named.items():
            words = text.split()
            switches = tuple(word for word in words if word.isupper())
            flags = {word: True for word in words if word.islower()}
            yield Variant(model=model, name=name, switches=switches, **flags)


VARIANTS = tuple(_read_variants())


def find(name: str) -> Variant:
    """The first variant of this name."""
    return next(variant for variant in VARIANTS if variant.name == name)


NEWEST_SENTINEL = find("the newest sentinel is deleted")
KEPT_EPOCH = find("no epoch is raised")


def missing() -> str | None:
    """What to install, or None."""
    for program, package in ((spin(), "spin"), ("gcc", "gcc")):
        if shutil.which(program) is None:
            return f"{package} is not here: apt-get install {package} (scripts/spin.sh)"
    return None


def spin() -> str:
    """Spin's program."""
    return os.environ.get("SPIN", "spin")


def check(variant: Variant) -> Outcome:
    """Generate, compile and run the verifier of one variant."""
    switches = [f"-D{switch}" for switch in variant.switches]
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        shutil.copy(HERE / f"{variant.model}.pml", here)
        model = f"{variant.model}.pml"
        _run([spin(), "-a", *switches, model], here)
        search = ["-DCOLLAPSE"] if variant.safe else ["-DBFS"]
        limits = ["-DSAFETY", f"-DMEMLIM={MEMORY_MB_MAX}"]
        _run(
            ["gcc", "-O2" if variant.deep else "-O0", "-w", *limits, *search, "-o", "pan", "pan.c"],
            here,
        )
        started = time.monotonic()
        hash_bits = 24 if variant.deep else 20
        found = _run(["./pan", f"-m{DEPTH_MAX}", f"-w{hash_bits}"], here)
        seconds = time.monotonic() - started
        trail: list[str] = []
        if (here / f"{model}.trail").exists():
            steps = _run([spin(), "-t", "-T", *switches, model], here)
            trail = [line for line in steps.splitlines() if re.match(r"[a-z]+( \d+)?: ", line)]
            trail = [line for line in trail if not line.startswith("spin:")]
    return _outcome(found, seconds, tuple(trail))


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=SEARCH_SECONDS_MAX, check=False
    )
    if done.returncode != 0 and command[0] != "./pan":
        raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def _outcome(found: str, seconds: float, trail: tuple[str, ...]) -> Outcome:
    states = re.search(r"(\d+) states, stored", found)
    depth = re.search(r"depth reached (\d+), errors: (\d+)", found)
    if states is None or depth is None:
        raise RuntimeError(f"the verifier did not end well:\n{found}")
    violated = re.search(r"pan:1: (.*) \(at depth \d+\)", found)
    cut_short = ("not completed", "too small", "reached -DMEMLIM", "out of memory")
    return Outcome(
        states=int(states[1]),
        depth=int(depth[1]),
        seconds=seconds,
        complete=depth[2] == "0" and not any(words in found for words in cut_short),
        violated=violated[1] if violated else None,
        trail=trail,
    )


def main() -> int:
    """Check everything and print the table; 1 when anything is not as expected."""
    why = missing()
    if why is not None:
        print(why, file=sys.stderr)
        return 1
    print(f"{'model':10}{'variant':51}{'states':>12}{'depth':>7}{'seconds':>9}  result")
    wrong, states, example = 0, 0, None
    for variant in VARIANTS:
        outcome = check(variant)
        expected = outcome.is_as_expected(variant)
        wrong += not expected
        states += outcome.states
        example = outcome if variant == NEWEST_SENTINEL else example
        if variant.safe:
            result = "holds" if expected else f"DOES NOT HOLD: {outcome.violated or 'cut short'}"
        else:
            steps = len(outcome.trail)
            result = f"counterexample of {steps} steps" if expected else "NO COUNTEREXAMPLE"
        print(
            f"{variant.model:10}{variant.name:51}{outcome.states:12,}{outcome.depth:7}"
            f"{outcome.seconds:9.1f}  {result}",
            flush=True,
        )
    print(f"\n{states:,} states of {len(VARIANTS)} variants")
    if example is not None:
        print(f"\nHow a row is lost when {NEWEST_SENTINEL.name}:")
        print("\n".join(f"  {line}" for line in example.trail))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
