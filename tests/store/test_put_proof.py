"""The proof of put-if-absent: no false yes, no false no, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from memwal.errors import AlreadyExists, MemWalError, StoreUnavailable, Unsupported
from memwal.ports import Objects
from memwal.store.objects.opening import ensure_put_if_absent, prove_put_if_absent
from memwal.testing import Call, Fault, FaultyObjects, HookedObjects, ManualClock, MemoryObjects

T = TypeVar("T")
GONE = StoreUnavailable("the store is away")


@dataclass
class Puts:
    """Conditional puts that end by script: an odd store, under whatever our client makes of it.

    `keeps`: as the store does. `replaces`: the put goes through. `lost`: it goes through, the reply
    is lost, and the retry meets its own object. `phantom`: an object is said to be there.
    """

    script: list[str]
    inner: MemoryObjects = field(default_factory=MemoryObjects)
    names: list[str] = field(default_factory=list)

    def __call__(self, call: Call, effect: Callable[[], T]) -> T:
        if call.operation != "put_if_absent":
            return effect()
        assert call.data is not None
        self.names += call.paths
        ending = self.script.pop(0) if self.script else "keeps"
        if ending in ("replaces", "lost"):
            self.inner.put(call.paths[0], call.data)
        if ending in ("lost", "phantom"):
            raise AlreadyExists(call.paths[0])
        return effect() if ending == "keeps" else None  # type: ignore[return-value]

    @property
    def objects(self) -> HookedObjects:
        return HookedObjects(self.inner, self)


def left(objects: Objects) -> list[str]:
    return [info.path for info in objects.list("")]


def test_a_sound_store_is_asked_four_times_and_holds_nothing_more(
    open_store: Callable[[], Objects],
) -> None:
    objects = open_store()
    prove_put_if_absent(objects, ManualClock())
    counts = objects.counts
    assert (counts.put, counts.get, counts.delete, counts.list) == (2, 1, 1, 0)
    assert left(objects) == []


@pytest.mark.parametrize(
    "script",
    [["replaces", "replaces"], ["keeps", "replaces"], ["keeps", "lost"]],
    ids=["ignores the condition", "of two servers one ignores it", "its reply is lost"],
)
def test_a_store_whose_second_put_wins_is_refused_at_once(script: list[str]) -> None:
    puts = Puts(script)
    with pytest.raises(Unsupported, match=r"does not keep put-if-absent.*nothing was written"):
        prove_put_if_absent(puts.objects, ManualClock())
    assert len(puts.names) == 2
    assert left(puts.inner) == []


@pytest.mark.parametrize(
    ("script", "puts_sent"),
    [
        (["lost", "keeps"], 2),
        (["phantom", "keeps"], 4),
        (["phantom", "phantom"], 4),
        (["vanishes", "phantom"], 4),
    ],
    ids=["first reply lost", "second creates", "nothing there", "first vanished"],
)
def test_an_unclear_answer_is_neither_yes_nor_no(script: list[str], puts_sent: int) -> None:
    puts = Puts(script)
    prove_put_if_absent(puts.objects, ManualClock())
    assert len(puts.names) == puts_sent
    assert len(set(puts.names)) == puts_sent / 2  # each try has a name of its own
    assert left(puts.inner) == []


def test_what_stays_unclear_is_an_error_that_is_worth_another_run() -> None:
    puts = Puts(["phantom"] * 100)
    with pytest.raises(StoreUnavailable, match="could not be settled"):
        prove_put_if_absent(puts.objects, ManualClock())
    assert len(puts.names) == 6


def test_a_yes_is_remembered_for_its_store_alone() -> None:
    one, other = MemoryObjects(uri="memory://same"), MemoryObjects(uri="memory://same")
    for _ in range(3):
        ensure_put_if_absent(one, ManualClock())
    ensure_put_if_absent(MemoryObjects(bucket=one.bucket, uri="memory://table-2"), ManualClock())
    assert one.counts.put == 2
    ensure_put_if_absent(other, ManualClock())
    assert other.counts.put == 2


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault(operation="put_if_absent", nth=1, error=GONE), StoreUnavailable),
        (Fault(operation="put_if_absent", nth=2, error=GONE), StoreUnavailable),
        (Fault(operation="put_if_absent", nth=1, error=GONE, when="after"), StoreUnavailable),
        (Fault(operation="get", error=GONE), StoreUnavailable),
        (Fault(operation="put_if_absent", error=Unsupported("MW-E02", "501")), Unsupported),
        (Fault(operation="delete", error=GONE), None),
    ],
)
def test_a_fault_proves_nothing(fault: Fault, error: type[MemWalError] | None) -> None:
    objects = FaultyObjects(MemoryObjects(), fault)
    if error is None:
        ensure_put_if_absent(objects, ManualClock())
        assert len(left(objects)) == 1  # garbage after a day
        return
    with pytest.raises(error):
        ensure_put_if_absent(objects, ManualClock())
    assert left(objects) == []
    ensure_put_if_absent(objects, ManualClock())
    assert objects.counts.put >= 2
