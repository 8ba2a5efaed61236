"""Mutations of a watch's looks, and of what is remembered between them."""

from __future__ import annotations

from tests.simulation.mutation_list import mutations

_LOOKS = "tests/jobs/watch/test_looks.py -m 'not integration'"

LOOKS = (
    *mutations(
        "memwal/store/shards/manifests.py",
        "tests/store/test_manifest_memory.py -m 'not integration'",
        (
            "memory: a manifest is known by its name",
            "found is not None and found[0] == file else None",
            "found is not None and found[0].path == file.path else None",
        ),
        (
            "memory: a shard's manifest is known by its shard",
            "found is not None and found[0] == file else None",
            "found is not None else None",
        ),
        (
            "memory: the same address in another store is the same table",
            "setdefault((store, uri), ManifestMemory())",
            'setdefault(("", uri), ManifestMemory())',
        ),
        (
            "memory: a file without an etag is known by its size and date",
            "        if file.etag:\n",
            "        if file:\n",
        ),
        (
            "memory: it grows without end",
            "self._count() > self._manifests_max",
            "False",
        ),
    ),
    *mutations(
        "memwal/store/shards/manifests.py",
        _LOOKS,
        (
            "memory: what was read shows more than a listing that lags",
            "found[0] == file else None",
            "(found[0] == file or found[1].version > 3) else None",
        ),
    ),
    *mutations(
        "memwal/store/shards/manifests.py",
        "tests/store/test_manifest_file.py -m 'not integration'",
        (
            "memory: a file on disk may be damaged",
            "            if digest != _digest(body):\n                return\n",
            "",
        ),
        (
            "memory: a cache folder may be another user's",
            "return folder if found.st_uid == os.getuid() and not found.st_mode & 0o077 else None",
            "return folder",
        ),
        (
            "memory: a file on disk may be a link",
            "os.O_RDONLY | os.O_NOFOLLOW",
            "os.O_RDONLY",
        ),
        (
            "memory: files of other programs go",
            'self._folder.glob(f"*{_SUFFIX}*")',
            "self._folder.iterdir()",
        ),
    ),
    *mutations(
        "memwal/store/shards/manifests.py",
        _LOOKS,
        (
            "looks: a manifest that is asked for again may be another one",
            "        if known is None or found != known.raw:",
            "        if known is None or found is None:",
        ),
    ),
    *mutations(
        "memwal/jobs/watch/store/__init__.py",
        _LOOKS,
        (
            "looks: a version of the same number is the same one",
            "self._facts is not None and file == self._file and",
            "self._facts is not None and file.path == (self._file or file).path and",
        ),
        (
            "looks: a version that was seen shows more than a listing that lags",
            "self._facts is not None and file == self._file and",
            "self._facts is not None and file.path >= (self._file or file).path and",
        ),
        (
            "looks: on local files a version of the same number is the same one",
            "            if self._read_mark(self._file.path) != self._mark:\n"
            "                return False\n",
            "            self._read_mark(self._file.path)\n",
        ),
        (
            "looks: on local files a version without a next one is the latest",
            " or self._unlisted < 0:",
            ":",
        ),
        (
            "looks: a detached version is the latest",
            "version is not None and not layout.is_detached(version)",
            "version is not None",
        ),
        (
            "looks: one page of any listing shows the newest version",
            "number == page_objects and is_newest_first and",
            "number == page_objects and",
        ),
        (
            "looks: a listing in no order may begin with the newest version",
            "        is_newest_first &= last < file.path\n",
            "",
        ),
    ),
    *mutations(
        "memwal/jobs/watch/store/shards.py",
        _LOOKS,
        (
            "looks: shards that are not listed are still there",
            "        both = ((shard, kept.get(shard) or found[shard]) for shard in listing.shards)\n",
            "        both = {**self._seen, **kept, **found}.items()\n",
        ),
        (
            "looks: the times of all generations are asked for",
            "unfinished[:_DATED_MAX]",
            "unfinished",
        ),
        (
            "looks: the times of what was merged long ago are asked for",
            "[g for g in generations if g.generation > through]",
            "list(generations)",
        ),
        (
            "looks: a shard's broken manifest is the table's",
            "        except StoreUnavailable:\n            raise  # the others would wait as long",
            "        except MemWalError:\n            raise",
        ),
        (
            "looks: a shard that can't be reached is broken",
            "        except StoreUnavailable:\n            raise  # the others would wait as long\n",
            "",
        ),
    ),
    *mutations(
        "memwal/jobs/watch/store/names.py",
        "tests/jobs/watch/test_watch_names.py -m 'not integration'",
        (
            "watch: a namespace that can't be asked has no tables",
            "            if isinstance(end, list) and end != found.names:\n",
            "            end = end if isinstance(end, list) else []\n            if True:\n",
        ),
        (
            "watch: a namespace that does not answer is asked again and again",
            "            if not found.under_way and now >=",
            "            if now >=",
        ),
    ),
    *mutations(
        "memwal/jobs/watch/store/__init__.py",
        _LOOKS,
        (
            "looks: what is dropped during a look is a hole",
            "            if newer is facts:\n                break\n",
            "            break\n",
        ),
    ),
    *mutations(
        "memwal/jobs/watch/apply/__init__.py",
        "tests/jobs/watch/test_watch_apply.py",
        (
            "watch: looks at a store that may be silent begin as ever",
            "            if state.watched.store in full:\n",
            "            if ():\n",
        ),
        (
            "watch: a look at a former address counts",
            "state is None or state.looking is not look.asked:",
            "state is None:",
        ),
    ),
    *mutations(
        "memwal/jobs/watch/plan.py",
        "tests/jobs/watch/test_watch_apply.py",
        (
            "watch: looks that never end hold up other tables",
            "for look in looks if not look.overdue)",
            "for look in looks)",
        ),
        (
            "watch: looks at a silent store take all the room",
            "min(n, share) if store in silent else n",
            "n",
        ),
    ),
    *mutations(
        "memwal/jobs/watch/plan.py",
        "tests/jobs/watch/test_watch_plan.py",
        (
            "watch: a store that answers may be silent",
            "min(look.seconds, answered_seconds.get(look.store, math.inf)) >=",
            "look.seconds >=",
        ),
    ),
    *mutations(
        "memwal/jobs/watch/apply/table_state.py",
        "tests/jobs/watch/test_watch_apply.py",
        (
            "watch: one shard that nobody can merge keeps all from being collected",
            "self.upkeep[job].at + puts_off * seconds <= now",
            "self.upkeep[job].at <= now and not puts_off",
        ),
        (
            "watch: upkeep takes the place of rounds that a late table waits for",
            "_UPKEEP_MISSED_MAX if self.wants else 1",
            "1",
        ),
    ),
)
