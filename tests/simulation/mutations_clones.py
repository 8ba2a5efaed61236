"""Mutations of what tells a shard from the progress that came with a copied index."""

from __future__ import annotations

from tests.simulation.mutation_list import Mutation, mutations

_TESTS = "tests/store/test_inherited.py -m 'not integration'"

CLONES: tuple[Mutation, ...] = (
    *mutations(
        "memwal/rows/inherited.py",
        _TESTS,
        (
            "clones: a shard below its progress is used",
            "    return manifest.current_generation <= merged_generation",
            "    return False",
        ),
        (
            "clones: rows that hide below later generations are not looked for",
            "    return shard.merged_generation > 0 and min(",
            "    return False and min(",
        ),
        (
            "clones: a first generation is never in doubt",
            "    return merged.get(shard_id, 0) > 0 and not is_old",
            "    return False",
        ),
        (
            "clones: a writer claims a shard below its progress",
            "    if generation and (manifest is None or is_below(manifest, generation)):",
            "    if False:",
        ),
        (
            "clones: an untouched one is not told",
            "    if not found:\n        return ()\n    some",
            "    if True:\n        return ()\n    some",
        ),
    ),
    *mutations(
        "memwal/store/inherited.py",
        _TESTS,
        (
            "clones: a clone's version is like any other",
            "        if origin.cloned:",
            "        if False:",
        ),
        (
            "clones: progress is not traced through a restore",
            "            if source is not None:",
            "            if False:",
        ),
        (
            "clones: clocks alone have to tell",
            "        return is_later and self._is_stored_later(_folder(shard), origin.version)",
            "        return False",
        ),
        (
            "clones: what was merged here is no origin",
            "    return [*takewhile(lambda version: version.merged.get(shard_id, 0) > 0, traced)]",
            "    return [*traced]",
        ),
    ),
    *mutations(
        "memwal/store/view.py",
        _TESTS,
        (
            "clones: a view of one shard has a stranger",
            "        if view.broken:",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/init/plan.py",
        _TESTS,
        (
            "clones: operands are merged again",
            "    if found.mixed and found.view.policy_text is not None:",
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/init/store.py",
        _TESTS,
        (
            "clones: progress that came in between is overwritten",
            "            version, lowered = landed, bool(between)",
            "            version, lowered = landed, False",
        ),
        (
            "clones: an untouched one keeps its progress",
            "for s in (*find_untouched(view), *strangers)",
            "for s in strangers",
        ),
    ),
    *mutations(
        "memwal/jobs/init/job.py",
        _TESTS,
        (
            "clones: a merge without the lease does not wait for an adoption",
            "        lease_name = LOWERING_JOB if request.adopts_clone else NAME",
            "        lease_name = NAME",
        ),
    ),
    *mutations(
        "memwal/jobs/verify/store.py",
        _TESTS,
        (
            "clones: verify takes an adoption for a regression",
            "                or lets_go_of_progress(self.tables, after.version)",
            "                or False",
        ),
    ),
    *mutations(
        "memwal/jobs/rescue/job.py",
        _TESTS,
        (
            "clones: rescue takes a shard below its progress",
            "        if shard in broken:",
            "        if False:",
        ),
    ),
)
