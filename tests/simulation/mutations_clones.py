"""Mutations of what tells a shard from the progress that came with a copied index."""

from __future__ import annotations

from tests.simulation.mutation_list import Mutation, mutations

_TESTS = "tests/store/test_inherited.py -k 'not by_lancedb'"
_LOST = "tests/store/test_inherited.py -k 'lost_its or about_to_claim or between_the_looks'"
_SIMULATED = "tests/simulation/test_clones.py"

CLONES: tuple[Mutation, ...] = (
    *mutations(
        "memwal/rows/progress.py",
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
        "memwal/store/tables/view.py",
        _LOST,
        (
            "clones: a shard that lost its manifests is taken for untouched",
            "            self._judge_bare(shard) if one is None and merged.get(shard, 0) else one",
            "            one",
        ),
        (
            "clones: a folder without rows counts as a shard that lost its manifests",
            '        if not any(n == "wal" or',
            '        if False and not any(n == "wal" or',
        ),
        (
            "clones: a first manifest that comes between the looks is not seen",
            "        return self._try_shard(shard_id) or BrokenShard(",
            "        return BrokenShard(",
        ),
    ),
    *mutations(
        "memwal/jobs/init/plan.py",
        _LOST,
        (
            "clones: the progress of a shard that can't be read is let go of",
            "            _check_read(view)",
            "            pass",
        ),
    ),
    *mutations(
        "memwal/store/shards/inherited.py",
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
        "memwal/store/tables/view.py",
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
        "memwal/jobs/init/plan.py",
        _TESTS,
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
        "memwal/jobs/index_catchup/apply.py",
        "tests/store/test_inherited.py -k nothing_is_hidden",
        (
            "clones: indexes are called caught up with progress of another table",
            "        check_progress(view)\n",
            "",
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
    *mutations(
        "memwal/rows/progress.py",
        _SIMULATED,
        (
            "simulated: clones: a shard below its progress is used",
            "    return manifest.current_generation <= merged_generation",
            "    return False",
        ),
        (
            "simulated: clones: rows that hide below later generations are not looked for",
            "    return shard.merged_generation > 0 and min(",
            "    return False and min(",
        ),
    ),
    *mutations(
        "memwal/jobs/init/apply.py",
        f"{_TESTS} {_SIMULATED}",
        (
            "clones: progress is raised again after the lease has lapsed",
            "            self.before_repair()\n",
            "",
        ),
        (
            "clones: progress that came in between is overwritten",
            "                    merged[shard_id] = max(generation, merged.get(shard_id, 0))",
            "                    pass",
        ),
    ),
    *mutations(
        "memwal/store/shards/inherited.py",
        _SIMULATED,
        (
            "simulated: clones: progress is not traced through a restore",
            "            if source is not None:",
            "            if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/garbage/look.py",
        _TESTS,
        (
            "clones: garbage believes versions from before an adoption",
            "        if not is_latest and any(merged in r for r in self._adopted.get(shard_id, ())):",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/store/shards/inherited.py",
        _TESTS,
        (
            "clones: what an adoption let go of is believed where nothing else tells",
            "            is_inherited = any(origin.merged[shard.shard_id] in r for r in let_go)",
            "            is_inherited = False",
        ),
    ),
    *mutations(
        "memwal/jobs/garbage/store/__init__.py",
        _TESTS,
        (
            "clones: garbage reads no record of an adoption",
            "        return read_adopted(self._objects) if 1 in listed else {}",
            "        return {}",
        ),
    ),
)
