"""Generations: listed ones are dropped from the shard manifest, unlisted folders are deleted.

A generation leaves in two passes. The first drops it, the second deletes its folder once no
manifest has named it for the grace time. The gates of a generation g of shard s:

1. It is merged at EVERY retained version of the base table: main, branches, detached ones. A
   version without a MemWAL index holds nothing. One whose index does not know s holds everything,
   except generations that are listed no more and that a record it names proves to be merged
   ("settled", `rows/progress.py`).
2. Every index that must cover it has caught up at the latest version. An index or shard that is
   absent from `index_catchup` is not known to be caught up. A settled generation needs no index.
3. It is merged at the latest version (which 1 implies: the latest version is retained).

A folder that no manifest names is deleted if its NUMBER passes the gates and
4. its number is below `current_generation`, both now and in the manifest that was the latest one
   when the grace began: so no flush of that number is in progress, and none was listed and dropped
   again within the grace;
5. that older manifest does not name it either;
6. its newest file is older than the grace.

A failed flush leaves a folder whose retry has the same number, so it goes by the same gates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from memwal.format import layout
from memwal.jobs.garbage.model import (
    ORPHAN,
    Action,
    GenerationFolder,
    Item,
    UntilGrace,
    newest_of,
    plan_delete,
    size_of,
)
from memwal.jobs.garbage.survey import ShardSurvey, Survey
from memwal.model import ShardManifest, StoredFile

NAME = "generation"


def find_items(survey: Survey) -> Iterator[Item]:
    """Listed generations, unlisted folders, and folders of shards without a usable manifest."""
    for shard in survey.shards:
        yield from _find_listed(shard)
        yield from _find_unlisted(shard)
    if survey.view is not None:
        yield from _find_strays(survey, {str(b.shard_id): b.error for b in survey.view.broken})


def may_delete(item: Item) -> bool:
    """Whether it is the folder of the item's own generation, directly below a shard."""
    match item.path.split("/"):
        case [layout.MEM_WAL, shard, name] if layout.is_shard_folder(shard):
            return layout.parse_generation_folder(name) == item.generation is not None
    return False


def _find_listed(shard: ShardSurvey) -> Iterator[Item]:
    folders = {f.name: f for f in shard.found.folders}
    for generation in shard.manifest.flushed_generations:
        folder = folders.get(generation.path)
        why = shard.shut or shard.gates.held(shard.shard_id, generation.generation)
        yield Item(
            kind=NAME,
            shard_id=shard.shard_id,
            path=f"{layout.shard_folder(shard.shard_id)}/{generation.path}",
            bytes=size_of(folder.files) if folder else 0,
            action=Action.DROP if why is None else Action.KEEP,
            reason=why or "merged at every retained version, and every index has caught up",
            generation=generation.generation,
        )


def _find_unlisted(shard: ShardSurvey) -> Iterator[Item]:
    # Computed once: a shard that was never collected has many folders and long manifests.
    listed, listed_before = _paths_of(shard.manifest), _paths_of(shard.past)
    for folder in shard.found.folders:
        if folder.name not in listed:
            yield plan_delete(
                NAME,
                f"{layout.shard_folder(shard.shard_id)}/{folder.name}",
                *split_stages(folder),
                why="no manifest has named it since before the grace, and nothing needs it",
                held=shard.shut or _hold_folder(shard, folder, listed_before),
                shard_id=shard.shard_id,
                generation=folder.generation,
            )


def _paths_of(manifest: ShardManifest | None) -> set[str]:
    return set() if manifest is None else {g.path for g in manifest.flushed_generations}


def _hold_folder(
    shard: ShardSurvey, folder: GenerationFolder, listed_before: set[str]
) -> str | None:
    number = folder.generation
    if number < 1:
        return "generations are numbered from 1"
    current = shard.manifest.current_generation
    if number >= current:
        return f"may be a flush in progress: the current generation is {current}"
    held = shard.gates.held(shard.shard_id, number)
    if held is not None:
        return held
    past = shard.past
    if past is None:
        return UntilGrace("no manifest is older than the grace")
    if folder.name in listed_before:
        return UntilGrace(f"manifest version {past.version} named it when the grace began")
    if number >= past.current_generation:
        return UntilGrace("it was flushed after the grace began")
    if newest_of(folder.files) > shard.cutoff_nanos:
        return UntilGrace("its newest file is younger than the grace")
    return None


def split_stages(folder: GenerationFolder) -> tuple[tuple[StoredFile, ...], ...]:
    """Split a folder's files so that `_versions/` goes first, then the rest.

    What is left of a half-deleted folder then no longer opens as a table: a reader that still holds
    an older manifest finds no table, instead of one whose rows vanish while it scans.
    """
    marker = f"/{folder.name}/{layout.VERSIONS}/"
    first = tuple(f for f in folder.files if marker in f.path)
    rest = tuple(f for f in folder.files if marker not in f.path)
    return tuple(stage for stage in (first, rest) if stage)


def _find_strays(survey: Survey, errors: Mapping[str, Exception]) -> Iterator[Item]:
    """Generation folders of shards whose manifest is missing or broken; they are always kept."""
    known = {shard.shard_id for shard in survey.shards}
    for shard_id, found in survey.evidence.shards.items():
        error = errors.get(shard_id)
        for folder in () if shard_id in known else found.folders:
            yield plan_delete(
                ORPHAN,
                f"{layout.shard_folder(shard_id)}/{folder.name}",
                folder.files,
                why="",
                held="the shard has no manifest"
                if error is None
                else f"the shard's manifest can't be used: {error}",
                shard_id=shard_id,
                generation=folder.generation,
            )
