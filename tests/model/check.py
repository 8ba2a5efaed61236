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
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SEARCH_SECONDS_MAX = 600
MEMORY_MB_MAX = 4000
DEPTH_MAX = 100_000


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A model and its switches. `deep` ones are large; the tests run the `quick` ones."""

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


_SMALL_WAL = ("WRITERS=3", "LAST=4", "COLLECTIONS=1")
_TWO_WRITERS = ("WRITERS=2", "LAST=5", "DROPS=1", "COLLECTIONS=1")
_ONE_WRITER = ("WRITERS=1", "LAST=6", "DROPS=2", "COLLECTIONS=1")
_SNAPSHOT_READER = ("READER", "MERGERS=1", "VERSIONS=5")
_SNAPSHOT_RESTORE = ("RESTORE", "MERGERS=1", "VERSIONS=6")
_SMALL_MERGE = ("GENERATIONS=2", "READS=1")


def _fencing(name: str, switch: str, *, quick: bool = False) -> Variant:
    return Variant(model="fencing", name=name, switches=(switch, *_SMALL_WAL), quick=quick)


def _merging(name: str, switch: str, *, quick: bool = False) -> Variant:
    return Variant(model="merging", name=name, switches=(switch, *_SMALL_MERGE), quick=quick)


def _manifests(name: str, switch: str, *switches: str, quick: bool = False) -> Variant:
    switches = switches or _TWO_WRITERS
    return Variant(model="manifests", name=name, switches=(switch, *switches), quick=quick)


NEWEST_SENTINEL = _fencing("the newest sentinel is deleted", "DELETE_NEWEST_SENTINEL", quick=True)

KEPT_EPOCH = Variant(
    model="restore", name="no epoch is raised", switches=("KEPT_EPOCH",), quick=True
)

VARIANTS = (
    Variant(model="fencing", name="as it is", switches=_SMALL_WAL, safe=True),
    Variant(
        model="fencing", name="as it is, three positions", safe=True, quick=True,
        switches=("WRITERS=3", "LAST=3", "COLLECTIONS=1"),
    ),
    Variant(
        model="fencing", name="as it is, two collections", safe=True, deep=True,
        switches=("WRITERS=3", "LAST=5", "COLLECTIONS=2"),
    ),
    Variant(
        model="fencing", name="as it is, six positions", safe=True, deep=True,
        switches=("WRITERS=3", "LAST=6", "COLLECTIONS=1"),
    ),
    NEWEST_SENTINEL,
    _fencing("every sentinel is deleted", "DELETE_SENTINELS"),
    _fencing("the highest position is deleted", "DELETE_HIGHEST"),
    _fencing("entries above the replay position are deleted", "DELETE_UNCOVERED"),
    _fencing("entries above the last position seen are deleted", "DELETE_UNSEEN"),
    _fencing("unfinished claims hold nothing", "DELETE_BELOW_CLAIM"),
    _fencing("a sentinel ends a claim", "SENTINEL_ENDS_CLAIM", quick=True),
    _fencing("rows are told although a sentinel is not found", "UNLOCATED", quick=True),
    _fencing("sentinels are taken for those of their turn", "IN_ORDER"),
    _fencing("writers leave no sentinel", "NO_SENTINEL"),
    _fencing("a flush does not check the epoch", "NO_EPOCH_CHECK"),
    _fencing("a put overwrites what is there", "NO_PUT_IF_ABSENT"),
    Variant(model="merging", name="as it is, no lease", switches=_SMALL_MERGE, safe=True),
    Variant(
        model="merging", name="as it is, a lease that lapses", safe=True, deep=True,
        switches=("LEASE", *_SMALL_MERGE),
    ),
    Variant(
        model="merging", name="as it is, three generations", safe=True, deep=True,
        switches=("GENERATIONS=3", "READS=1"),
    ),
    _merging("folds without an anchor", "UNANCHORED_FOLDS", quick=True),
    _merging("newest generation first", "NEWEST_FIRST"),
    _merging("the mark is committed before the rows", "MARK_BEFORE_ROWS"),
    _merging("a mark may be lower", "NO_MARK_CHECK"),
    _merging("dropped when the latest version has it", "DROP_AT_LATEST"),
    _merging("deleted without a grace", "NO_GRACE"),
    _merging("deleted while a manifest names it", "DELETE_LISTED"),
    _merging("the reader passes over holes", "NO_HOLE_CHECK"),
    Variant(model="snapshot", name="as it is, mergers without the lease", safe=True, quick=True),
    Variant(model="snapshot", name="no repair", switches=("NO_REPAIR",)),
    Variant(
        model="snapshot", name="as it is, with a reader", switches=_SNAPSHOT_READER,
        safe=True, quick=True,
    ),
    Variant(
        model="snapshot", name="readers go by any snapshot", quick=True,
        switches=("UNCONFIRMED", *_SNAPSHOT_READER),
    ),
    Variant(
        model="snapshot", name="a repair has the stamp of its cause",
        switches=("ONE_STAMP", *_SNAPSHOT_READER),
    ),
    Variant(
        model="snapshot", name="killed before its repair, 8-bit keys",
        switches=("KILLED_UNCOMPARED",),
    ),
    Variant(
        model="snapshot", name="as it is, with a restore", switches=_SNAPSHOT_RESTORE,
        safe=True, quick=True,
    ),
    Variant(
        model="snapshot", name="as it is, with a restore and a reader",
        switches=("RESTORE", "GENERATIONS=2", *_SNAPSHOT_READER), safe=True, deep=True,
    ),
    Variant(
        model="snapshot", name="as it is, with a restore, two mergers", safe=True, deep=True,
        switches=("RESTORE", "GENERATIONS=2", "VERSIONS=6"),
    ),
    Variant(
        model="snapshot", name="what a restore lowered is raised", quick=True,
        switches=("RAISE_RESTORED", *_SNAPSHOT_RESTORE),
    ),
    Variant(
        model="snapshot", name="no reply is taken for no commit", quick=True,
        switches=("NO_REPLY_NO_COMMIT", *_SNAPSHOT_RESTORE),
    ),
    Variant(
        model="snapshot", name="what was flushed is not read again",
        switches=("READ_ONCE", "RESTORE", "GENERATIONS=2", *_SNAPSHOT_READER),
    ),
    Variant(model="lease", name="as it is", switches=("HOLDERS=2",), safe=True),
    Variant(model="lease", name="as it is, three holders", safe=True, deep=True),
    Variant(model="lease", name="claims overwrite", switches=("PLAIN_PUT",)),
    Variant(model="lease", name="what exists is taken for ours", switches=("EXISTS_IS_OURS",)),
    Variant(model="lease", name="no look before a commit", switches=("NO_LOOK",)),
    Variant(
        model="lease", name="nobody asks for the claim before", quick=True,
        switches=("HOLDERS=2", "NO_PREDECESSOR"),
    ),
    Variant(
        model="lease", name="claims are deleted highest first",
        switches=("HOLDERS=2", "HIGHEST_FIRST"),
    ),
    Variant(model="manifests", name="as it is", switches=_TWO_WRITERS, safe=True),
    Variant(
        model="manifests", name="as it is, one writer and drops", safe=True, quick=True,
        switches=_ONE_WRITER,
    ),
    Variant(
        model="manifests", name="as it is, two collections", safe=True, deep=True,
        switches=("WRITERS=2", "LAST=6", "DROPS=2", "COLLECTIONS=2"),
    ),
    _manifests("no name stays taken", "FREE_NAMES", quick=True),
    _manifests("one name stays taken, whatever drops follow", "FREE_AFTER_DROPS"),
    _manifests("the present epoch's last one goes", "FREE_PRESENT", *_ONE_WRITER),
    _manifests("what stays can be read", "LEFT_READABLE"),
    _manifests("version 1 is deleted", "FIRST_IS_GONE"),
    _manifests("the hint's target goes", "BELOW_HINT"),
    _manifests("highest first", "HIGHEST_FIRST", *_ONE_WRITER),
    _manifests("no grace for claims and drops", "NO_GRACE", quick=True),
    Variant(model="restore", name="as it is, the old shard deleted", safe=True, quick=True),
    Variant(model="restore", name="as it is, over", switches=("OVER",), safe=True, quick=True),
    KEPT_EPOCH,
    Variant(model="restore", name="over, no epoch is raised", switches=("OVER", "KEPT_EPOCH")),
    Variant(
        model="restore", name="the epoch after the backup's", switches=("NEXT_EPOCH",), quick=True
    ),
    Variant(
        model="restore", name="over, the epoch after the backup's",
        switches=("OVER", "OVER_UNREAD", "NEXT_EPOCH"),
    ),
    Variant(model="restore", name="the WAL goes on at once", switches=("NO_POSITION_LEAP",)),
    Variant(
        model="restore", name="no sentinel at the old tip", switches=("OVER", "NO_TIP_SENTINEL")
    ),
)  # fmt: skip


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
