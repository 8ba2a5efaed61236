"""The Lance and object side of an erasure: the search, the tombstones, and indexes built anew."""

from __future__ import annotations

from collections.abc import Sequence

from memwal.errors import LostRace, Refused
from memwal.format import layout
from memwal.jobs.erase.plan import Pin
from memwal.run.stores import Stores
from memwal.store.tables.lance_calls import call_lance


def drop_pin(stores: Stores, pin: Pin) -> None:
    """Delete a tag, or a checkpoint. Raises LostRace for a tag that was moved."""
    if pin.checkpoint:
        for found in stores.checkpoints.named(pin.name):
            if layout.checkpoint_tag(found.key) == pin.tag:
                stores.checkpoints.remove(found)
        return
    tags = stores.tables.base().tags
    now = call_lance(lambda: tags.list().get(pin.tag))
    if now is not None and int(now["version"]) != pin.version:
        raise LostRace(f"{stores.uri}: tag {pin.name!r} names version {now['version']} by now")
    if now is not None:
        call_lance(lambda: tags.delete(pin.tag))


def delete_objects(stores: Stores, paths: Sequence[str]) -> None:
    """Delete objects that nothing depends on. Raises Refused when one can't be deleted."""
    for path, why in stores.objects.delete(paths).failed:
        raise Refused("MW-Z04", f"{stores.uri}: {path} can't be deleted: {why}")
