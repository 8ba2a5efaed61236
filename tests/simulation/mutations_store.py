"""Mutations of names and bytes, of shard manifests, fencing, leases and the object stores."""

from __future__ import annotations

from tests.simulation.mutation_list import Mutation, mutations

_FAST = "-m 'not integration'"
_MANIFESTS = f"tests/store/test_manifests.py {_FAST}"
_FENCING = f"tests/store/test_fencing.py {_FAST}"
_LEASE = f"tests/store/test_lease.py {_FAST}"
_OBJECTS = f"tests/store/test_objects.py {_FAST}"
_FOREIGN = "tests/store/test_foreign_files.py -m 'not spark'"
_DOCTOR = "tests/jobs/doctor/test_doctor.py -m 'not integration'"
_CODEC = "tests/format/test_codec.py"

_NAMES = mutations(
    "memwal/format/layout.py",
    "tests/format/test_layout.py tests/format/test_run_names.py tests/format/test_codec.py",
    (
        "names: a shard's folder need not be a canonical UUID",
        "        return str(UUID(name)) == name",
        "        return bool(UUID(name))",
    ),
    (
        "names: a generation's path may be anything",
        "    if match is None:\n        text =",
        "    if match is None:\n        return path\n        text =",
    ),
    (
        "names: a generation's path may have another number",
        "    if int(match[1]) != generation:",
        "    if False:",
    ),
    (
        "names: a file's extension does not matter",
        "if found == extension and _BITS.fullmatch(stem) else None",
        "if _BITS.fullmatch(stem) else None",
    ),
    (
        "names: 64 characters are a number",
        "    if not _BITS.fullmatch(name):\n        raise ValueError",
        "    if False:\n        raise ValueError",
    ),
    (
        "names: numbers of more than 64 bits have names",
        "    if not 0 <= value <= U64_MAX:",
        "    if False:",
    ),
    (
        "names: a detached version need not have its bit",
        "        return version if DETACHED_BIT <= version <= U64_MAX else None",
        "        return version",
    ),
    (
        "names: a V2 name may be out of bounds",
        "        return version if 0 < version < DETACHED_BIT else None\n    if _DECIMAL",
        "        return version\n    if _DECIMAL",
    ),
    (
        "names: a run's id may be anything",
        "    if not 0 <= finished_at_nanos <= _NANOS_MAX or not _RUN_ID.fullmatch(run_id):",
        "    if not 0 <= finished_at_nanos <= _NANOS_MAX:",
    ),
)

_BYTES = mutations(
    "memwal/format/codec.py",
    _CODEC,
    (
        "bytes: another version's manifest",
        '    if message.version != version:\n        raise Corruption("MW-M01", f"holds version',
        '    if False:\n        raise Corruption("MW-M01", f"holds version',
    ),
    ("bytes: another shard's manifest", "    if found != shard_id:", "    if False:"),
    (
        "bytes: a status that is not known is ACTIVE",
        '        raise Unsupported("MW-M02", f"has an unknown shard status {message.status}") from None',
        "        status = ShardStatus.ACTIVE",
    ),
    (
        "bytes: a forged generation path",
        "        layout.check_generation_path(entry.path, entry.generation)\n",
        "",
    ),
    (
        "bytes: a generation twice",
        "        if known is not None and known.path != entry.path:",
        "        if False:",
    ),
    (
        "bytes: generations as they come",
        "    return tuple(found[number] for number in sorted(found))",
        "    return tuple(found.values())",
    ),
    ("bytes: a shard id of any length", "    if len(message.uuid) != 16:", "    if False:"),
    ("bytes: an index uuid of any length", "    if len(message.uuid.uuid) != 16:", "    if False:"),
    (
        "bytes: any footer",
        "    if len(footer) < FOOTER_BYTES or footer[-4:] != MAGIC:",
        "    if len(footer) < FOOTER_BYTES:",
    ),
    ("bytes: a footer that points before the file", "    if position < 0:", "    if False:"),
    ("bytes: a block that is cut off", "    if len(body) < length:", "    if False:"),
    (
        "bytes: another table version",
        '    if message.version != version:\n        raise Corruption("MW-M01", f"holds table version',
        '    if False:\n        raise Corruption("MW-M01", f"holds table version',
    ),
    ("bytes: two MemWAL entries", "    if len(entries) > 1:", "    if False:"),
    ("bytes: progress twice", "        if shard in progress:", "        if False:"),
    ("bytes: catch-up twice", "        if entry.index_name in catchup:", "        if False:"),
    (
        "bytes: unknown fields of a manifest get lost",
        "    message = parse_message(pb.ShardManifest, manifest.raw)",
        "    message = pb.ShardManifest()",
    ),
    (
        "bytes: unknown fields of a generation get lost",
        "        if old is not None:\n            entry.CopyFrom(old)",
        "        if False:\n            entry.CopyFrom(old)",
    ),
    (
        "bytes: unknown fields of the MemWAL index get lost",
        "    details = parse_message(pb.MemWalIndexDetails, state.raw)",
        "    details = pb.MemWalIndexDetails()",
    ),
    (
        "bytes: a hint may be any number",
        "return version if type(version) is int and 0 < version <= layout.U64_MAX else None",
        "return version",
    ),
)

_SHARD_MANIFESTS = mutations(
    "memwal/store/shards/manifests.py",
    _MANIFESTS,
    (
        "manifests: a hint is the latest",
        "        for _ in range(self._probes_max):",
        "        for _ in range(1):\n            return self._decode(found, shard_id, version)\n        for _ in range(self._probes_max):",
    ),
    (
        "manifests: a commit without put-if-absent",
        "        self._objects.put_if_absent(path, data)",
        "        self._objects.put(path, data)",
    ),
    (
        "manifests: a name that is taken is lost, though it is ours",
        "        if stored == data:\n            return\n",
        "",
    ),
    (
        "manifests: a name that is taken is ours",
        "        if stored == data:\n            return\n        if stored is None",
        "        if True:\n            return\n        if stored is None",
    ),
    (
        "manifests: an open outcome is a lost race",
        "        if stored is None and isinstance(error, StoreUnavailable):\n            raise error",
        "        if False:\n            raise error",
    ),
    (
        "manifests: an outcome that can't be looked up is a failure",
        '            raise OutcomeUnknown(\n                f"{where}: manifest version',
        '            raise StoreUnavailable(\n                f"{where}: manifest version',
    ),
    (
        "manifests: a fenced writer's commit is taken",
        "        if current is not None and proposed.writer_epoch < current.writer_epoch:",
        "        if False:",
    ),
    (
        "manifests: counters may fall",
        "        invariants.check_shard_manifest(current, proposed)\n",
        "",
    ),
    (
        "manifests: a SEALED shard is claimed",
        "            if current is not None and current.status is ShardStatus.SEALED:",
        "            if False:",
    ),
    (
        "manifests: two claims share an epoch",
        "            except (AlreadyExists, LostRace):\n                continue",
        "            except AlreadyExists:\n                return self._finish(current, proposed, data)",
    ),
    (
        "manifests: an epoch that was never stored is verified",
        "        if current is None or writer_epoch > current.writer_epoch:",
        "        if current is None:",
    ),
    (
        "manifests: a superseded epoch is verified",
        "        if writer_epoch < current.writer_epoch:\n            raise Fenced",
        "        if False:\n            raise Fenced",
    ),
    (
        "manifests: a hint that can't be written fails a commit that landed",
        "        except MemWalError:\n            return\n",
        "        except Missing:\n            return\n",
    ),
)

_FENCES = (
    *mutations(
        "memwal/store/shards/writers.py",
        _FENCING,
        (
            "fencing: no sentinel",
            "        position = 1 if manifest.writer_epoch == 1 else self._fence(manifest)",
            "        position = manifest.replay_after_wal_entry_position + 1\n        while self._wal.exists(shard_id, position):\n            position += 1",
        ),
        (
            "fencing: an overtaken claim goes on",
            "            self._manifests.verify_epoch(shard, manifest.writer_epoch)\n            try:",
            "            try:",
        ),
        (
            "fencing: a position that is taken is ours",
            "                if not self._is_ours(shard, position, data, error):",
            "                if False:",
        ),
        (
            "fencing: our own sentinel is somebody else's",
            "        return stored == data",
            "        return False",
        ),
        (
            "fencing: a sentinel that is missing was written",
            "        except Missing:\n            raise error from None\n        return stored",
            "        except Missing:\n            return True\n        return stored",
        ),
        (
            "fencing: a lost race ends an update",
            "                if attempt == self._updates_max:\n                    raise",
            "                raise",
        ),
        (
            "fencing: updates have no bound",
            "                if attempt == self._updates_max:\n                    raise",
            "                if attempt == self._updates_max:\n                    return claim",
        ),
        (
            "fencing: the sentinel is not marked as one",
            '{"fence_sentinel": "true", "writer_epoch"',
            '{"writer_epoch"',
        ),
    ),
    *mutations(
        "memwal/store/shards/writers.py",
        "",
        (
            "simulated: the epoch is not verified before an update",
            "            claim = self.verify(claim)\n            try:",
            "            latest = self._manifests.latest(claim.manifest.shard_id)\n            latest = replace(latest, writer_epoch=claim.writer_epoch)\n            claim = replace(claim, manifest=latest)\n            try:",
        ),
        (
            "simulated: no sentinel",
            "        position = 1 if manifest.writer_epoch == 1 else self._fence(manifest)",
            "        position = manifest.replay_after_wal_entry_position + 1\n        while self._wal.exists(shard_id, position):\n            position += 1",
        ),
    ),
    *mutations(
        "memwal/store/shards/manifests.py",
        "",
        (
            "simulated: a manifest is committed without put-if-absent",
            "        self._objects.put_if_absent(path, data)",
            "        self._objects.put(path, data)",
        ),
        (
            "simulated: a manifest's name that is taken is ours",
            "        if stored == data:\n            return\n        if stored is None",
            "        if True:\n            return\n        if stored is None",
        ),
        (
            "simulated: two claims share an epoch",
            "            except (AlreadyExists, LostRace):\n                continue",
            "            except AlreadyExists:\n                return self._finish(current, proposed, data)",
        ),
    ),
    *mutations(
        "memwal/ingest/sources/splits.py",
        "tests/ingest/test_ingest_staged.py -k compressed",
        (
            "ingest: staged rows unfold to any size",
            "        if count_decoded_bytes(data) > len(data):",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/store/shards/wal.py",
        "tests/store/test_wal_entries.py",
        (
            "wal: compression as of old is none",
            " and _OLD_COMPRESSION not in metadata:",
            ":",
        ),
        (
            "wal: a dictionary unfolds to nothing",
            '    if message.type not in ("record batch", "dictionary"):',
            '    if message.type != "record batch":',
        ),
    ),
    *mutations(
        "memwal/read/store/wal_rows.py",
        "tests/read/test_wal_rows.py -k 'counts_for_nothing or no_hole'",
        (
            "wal: rows of flushed entries are read once more",
            "            if found.entry.rows and not is_flushed(self.manifest, found.entry.generation):",
            "            if found.entry.rows:",
        ),
        (
            "wal: a tip that was written since is a hole",
            "                seen = tip - 1",
            "                pass",
        ),
    ),
    *mutations(
        "memwal/read/store/wal_rows.py",
        "tests/read/test_wal_rows.py -k 'limits or narrow'",
        (
            "wal: rows of any width are made of narrow ones",
            "        if rows * row_bytes > self.gathered.bytes_max:",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/store/shards/wal.py",
        "tests/store/test_wal_entries.py",
        (
            "wal: a sentinel may have rows",
            "            if head.fence_sentinel and rows:",
            "            if False:",
        ),
        (
            "wal: an entry needs no epoch",
            '    if b"writer_epoch" not in metadata:\n        raise ValueError',
            '    if b"writer_epoch" not in metadata:\n        return WalHead(writer_epoch=0, generation=None, fence_sentinel=False)\n        raise ValueError',
        ),
        (
            "wal: an odd flag is no sentinel",
            '    return value is not None and value != b"false"',
            '    return value == b"true"',
        ),
        (
            "wal: any number",
            "    if not _NUMBER.fullmatch(text) or int(text) > layout.U64_MAX:",
            "    if not _NUMBER.fullmatch(text):",
        ),
        (
            "wal: entries of any size are read",
            "        if stored.size_bytes > len(stored.data):",
            "        if False:",
        ),
        (
            "wal: entries unfold to any size",
            "        if size > limits.decoded_bytes_max:",
            "        if False:",
        ),
        (
            "wal: large entries are decoded side by side",
            "        return self._one_large if size > max(small, stored.size_bytes) else nullcontext()",
            "        return nullcontext()",
        ),
        (
            "wal: what is too large is torn",
            "                    refused=isinstance(error, Refused),\n",
            "",
        ),
        (
            "wal: batches are not checked",
            "                    batch.validate(full=True)",
            "                    pass",
        ),
        (
            "wal: a hole of the listing's is one of the WAL's",
            "            if tip > max(positions, default=0) or not self.exists(manifest.shard_id, tip):",
            "            if True:",
        ),
        (
            "wal: a head's size is what it says",
            '    return min(8 + int.from_bytes(data[4:8], "little"), _HEAD_BYTES_MAX)',
            '    return 8 + int.from_bytes(data[4:8], "little")',
        ),
    ),
)

_LEASES = (
    *mutations(
        "memwal/store/records/lease.py",
        _LEASE,
        (
            "lease: a live claim is taken over",
            "        if current is not None and self.is_live(current) and not is_gone(current.holder):",
            "        if False:",
        ),
        (
            "lease: a claim whose process is gone is waited for",
            " and not is_gone(current.holder):",
            ":",
        ),
        (
            "lease: a claim is judged by the reader's own length",
            "claim.released and claim.expires_at_nanos > self._clock.now_nanos()",
            "claim.released and claim.expires_at_nanos - claim.length_nanos + self._ttl_nanos"
            " > self._clock.now_nanos()",
        ),
        (
            "lease: a heartbeat gives a claim the length of whoever beats",
            "self._clock.now_nanos() + claim.length_nanos)",
            "self._clock.now_nanos() + self._ttl_nanos)",
        ),
        (
            "lease: another's length is taken for clock skew",
            "- self._clock.now_nanos() - claim.length_nanos",
            "- self._clock.now_nanos() - self._ttl_nanos",
        ),
        (
            "lease: a release is tried once",
            "                lambda error: isinstance(error, StoreUnavailable),",
            "                lambda error: False,",
        ),
        (
            "lease: a release that fails is not told",
            "            raise error.say(self._stands_text(claim, error)) from error",
            "            return",
        ),
        (
            "lease: one that nobody holds is broken",
            "        if current is None or not self.is_live(current):\n            return None\n",
            "",
        ),
        (
            "lease: fields of a newer build make a claim unreadable",
            "        known = {name: value for name, value in document.items() if name in _KNOWN}",
            "        known = document",
        ),
        (
            "lease: fields of a newer build are lost",
            "    return json.dumps({**claim.unknown, **known,",
            "    return json.dumps({**known,",
        ),
        (
            "lease: clock skew is not told",
            "        if not self.is_live(claim) or ahead <= _CLOCKS_AGREE_NANOS:",
            "        if True:",
        ),
        (
            "lease: an expired claim is live",
            " and claim.expires_at_nanos > self._clock.now_nanos()",
            "",
        ),
        (
            "lease: a released claim is live",
            "        return not claim.released and claim",
            "        return claim",
        ),
        (
            "lease: claims overwrite each other",
            "            self._objects.put_if_absent(layout.lease_claim_path(claim.token), encode_claim(claim))",
            "            self._objects.put(layout.lease_claim_path(claim.token), encode_claim(claim))",
        ),
        (
            "lease: whoever has the name, it is ours",
            "            if winner is None or winner.claim_id != claim.claim_id:",
            "            if winner is None:",
        ),
        (
            "lease: our own claim is another's",
            "            if winner is None or winner.claim_id != claim.claim_id:",
            "            if True:",
        ),
        (
            "lease: a superseded holder goes on",
            "        if newer is not None:\n            raise LeaseHeld",
            "        if False:\n            raise LeaseHeld",
        ),
        (
            "lease: a hint is the latest",
            "            following = self.read(found.token + 1)",
            "            following = None",
        ),
        (
            "lease: a torn claim is a free lease",
            "            raise Corruption(\n",
            "            return None\n            raise Corruption(\n",
        ),
    ),
    *mutations(
        "memwal/store/records/lease.py",
        "tests/fuzz/test_stored_bytes.py -k test_lease_claims",
        (
            "lease: numbers in a claim are not checked",
            "        all(_is_number(n) for n in numbers)\n        and all",
            "        all",
        ),
    ),
    *mutations(
        "memwal/store/records/process.py",
        _LEASE,
        (
            "holder: another namespace's or boot's pid is one of ours",
            "    if named is None or named[3] != _boot():",
            "    if named is None:",
        ),
        (
            "holder: whoever has the pid is the holder",
            " or stat.started != named[2])",
            ")",
        ),
        (
            "holder: who is alive is gone",
            "    except (OSError, OverflowError):\n        pass",
            "    except (OSError, OverflowError):\n        return True",
        ),
        (
            "holder: a process that nobody fetched is alive",
            "(stat.over or stat.started != named[2])",
            "stat.started != named[2]",
        ),
        (
            "holder: a /proc of another namespace is believed",
            "is None or not all(named[:3]):",
            "is None and not all(named[:3]):",
        ),
    ),
    *mutations(
        "memwal/run/lease.py",
        f"{_LEASE}",
        (
            "lease: the heart stops at a bug",
            "            except BaseException as error:",
            "            except KeyError as error:",
        ),
        ("lease: the heart does not notice a take-over", "                self._lost = lost\n", ""),
        (
            "lease: a lapse is not told",
            "self._lapsed = self._lapsed or not self._leases.is_live(self._claim)",
            "self._lapsed = False",
        ),
    ),
)

_STORES = (
    *mutations(
        "memwal/ports.py",
        _OBJECTS,
        (
            "objects: paths lead out",
            'any(part in ("", ".", "..") for part in path.split("/"))',
            "False",
        ),
        ("objects: paths may hold a NUL", '    if "\\0" in path or any', "    if any"),
    ),
    *mutations(
        "memwal/store/objects/local.py",
        _FOREIGN,
        (
            "foreign: a link in the MemWAL is read through",
            "        if not path.startswith(_UNLINKED):",
            "        if True:",
        ),
    ),
    *mutations(
        "memwal/store/objects/local.py",
        _FOREIGN,
        (
            "foreign: links are looked for on the way only",
            '    link = find_link(f"{root}/{folder}")',
            "    link = None",
        ),
        (
            "foreign: links are looked for in the folder only",
            "    check_way(root, folder)\n    link",
            "    link",
        ),
    ),
    *mutations(
        "memwal/store/tables/blobs.py",
        "tests/rows/test_blob_places.py",
        (
            "blobs: a folder's name may go on",
            "len(other.parts) > depth and other.parts[:depth] == self.parts",
            "'/'.join(other.parts).startswith('/'.join(self.parts))",
        ),
        (
            "blobs: any bucket will do",
            "        same = (self.scheme, self.bucket) == (other.scheme, other.bucket)",
            "        same = self.scheme == other.scheme",
        ),
        (
            "blobs: an address may be encoded twice",
            'set(part) & set("/%")',
            'set(part) & set("/")',
        ),
        (
            "blobs: an address may lead up",
            '    if any(part in ("", ".", "..") for part in parts):',
            '    if any(part in ("", ".") for part in parts):',
        ),
        (
            "blobs: any host will do",
            '        if bucket not in ("", "localhost"):',
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/store/tables/blobs.py",
        f"{_FOREIGN} -k 'address or referred or inside'",
        (
            "blobs: an address is followed",
            '        if not self.columns:\n            return {"blob_handling": "all_binary"}',
            '        if True:\n            return {"blob_handling": "all_binary"}',
        ),
        (
            "blobs: an address may lead anywhere",
            "            self.bounds.check(self.where, address, committing=committing)",
            "            pass",
        ),
        (
            "blobs: what is said to be an own blob may have an address",
            'found["kind"] in _OWN_KINDS and found["blob_uri"]:',
            "False:",
        ),
        (
            "blobs: an external blob is taken for one of the table's own",
            "_OWN_KINDS = (0, 1, 2)",
            "_OWN_KINDS = (0, 1, 2, 3)",
        ),
    ),
    *mutations(
        "memwal/jobs/merge/store/base_table.py",
        f"{_FOREIGN} -k 'this_host'",
        (
            "blobs: a refusal while rows stream is lost",
            "                self.error = error if ours else",
            "                self.error = None if ours else",
        ),
    ),
    *mutations(
        "memwal/store/tables/manifests.py",
        _FOREIGN,
        ("foreign: a generation may be a shallow clone", "    if others:", "    if False:"),
        (
            "foreign: a data file may be of another base",
            "            if file.base_id is not None:",
            "            if False:",
        ),
    ),
    *mutations(
        "memwal/store/tables/datasets.py",
        _FOREIGN,
        (
            "foreign: a generation may be linked",
            "        self._check_unlinked(folder)\n        dataset",
            "        dataset",
        ),
        (
            "foreign: a shard may be linked when it is claimed",
            "        self._check_unlinked(layout.shard_folder(shard_id))\n",
            "",
        ),
    ),
    *mutations(
        "memwal/store/objects/local.py",
        _OBJECTS,
        (
            "local: what memwal keeps may be linked",
            '_UNLINKED = (f"{layout.MEM_WAL}/", f"{layout.MAINTENANCE}/")',
            '_UNLINKED = (f"{layout.MEM_WAL}/",)',
        ),
        (
            "local: a write goes through a link",
            "                check_way(str(self._root), written)",
            "                pass",
        ),
        (
            "local: a file is staged through a link",
            "        for written in (path, _STAGING):",
            "        for written in (path,):",
        ),
        (
            "local: a create replaces",
            "                target.hardlink_to(staged)",
            "                staged.replace(target)",
        ),
        (
            "local: a create that is not atomic is made up for",
            "                raise errors.Unsupported(",
            "                raise errors.StoreUnavailable(",
        ),
        (
            "local: folders of writers go when empty",
            're.compile(r"^(_mem_wal/[^/]+/[0-9a-f]{8}_gen_[0-9]+)/")',
            're.compile(r"^(_mem_wal/[^/]+/[^/]+)/")',
        ),
        (
            "local: links to folders are followed",
            "    return entry.is_dir(follow_symlinks=False)",
            "    return entry.is_dir()",
        ),
        (
            "local: a folder is read as a file",
            "                if stat.S_ISDIR(found.st_mode):",
            "                if False:",
        ),
        (
            "local: a refused delete counts as done",
            "                failed.append((path, _describe(error)))",
            "                pass",
        ),
        (
            "local: what is staged lies under `_mem_wal`",
            "_STAGING = layout.STAGING",
            '_STAGING = "_mem_wal/tmp"',
        ),
    ),
    *mutations(
        "memwal/store/objects/s3.py",
        "tests/store/test_objects.py tests/store/test_s3_faults.py",
        ("s3: a create replaces", 'self._put(key, data, IfNoneMatch="*")', "self._put(key, data)"),
        (
            "s3: a conflict that nobody may have won counts as an object that exists",
            """                self._put(key, data, IfNoneMatch="*")
            except boto.ClientError as error:
                if status_of(error) == 412:
""",
            """                self._put(key, data, IfNoneMatch="*")
            except boto.ClientError as error:
                if status_of(error) in (409, 412):
""",
        ),
        (
            "s3: writes that conflicted to the last are not looked up",
            "            if status_of(error.__cause__) == 409 and self.exists(path):",
            "            if status_of(error.__cause__) == 409:",
        ),
        (
            "s3: refused deletes count as done",
            "            failed.update({pending[key]: faults[key] for key in faults if key not in again})\n",
            "",
        ),
        (
            "s3: keys that are no paths are listed",
            "[file for file in files if _is_path(file.path)]",
            "files",
        ),
        (
            "s3: refused credentials are retried by others",
            "        if isinstance(error, NO_CREDENTIALS) or status in (401, 403) or code in REFUSED_CODES:",
            "        if isinstance(error, NO_CREDENTIALS):",
        ),
    ),
    *mutations(
        "memwal/store/objects/cloud.py",
        "tests/store/test_clouds.py -m 'not integration'",
        ("clouds: a create replaces", 'data, mode="create")', "data, use_multipart=False)"),
        (
            "clouds: a refused create counts as an object that exists",
            "                    raise CreatesMet from None",
            "                    pass",
        ),
        (
            "clouds: refused deletes count as done",
            "                return str(error)\n",
            "                return None\n",
        ),
    ),
    *mutations(
        "memwal/store/objects/reads.py",
        "tests/store/test_s3_faults.py tests/store/test_clouds.py -m 'not integration'",
        (
            "reads: a range is what came, not what was asked for",
            '            if reply.meta["size"] and not ignored:',
            "            if False:",
        ),
        (
            "reads: a tail is what came first",
            "            if whole and (data or asked == from_start):",
            "            if True:",
        ),
        (
            "reads: a store that refuses a range from the end has an empty object",
            "            if whole and (data or asked == from_start):",
            "            if whole:",
        ),
        (
            "reads: a short object is read as far as it goes",
            "        if size_bytes < end:",
            "        if False:",
        ),
        (
            "reads: folders that a listing leaves out are not missed",
            "            names = listed if names <= listed else self._walk_names(folder)",
            "            names = listed",
        ),
        (
            "reads: a listing that a fault cut begins anew",
            '            last = page[-1]["path"]',
            "            last = None",
        ),
        (
            "reads: signatures are shown",
            "status, cause = status_of(error), cause_of(error)",
            "status, cause = status_of(error), str(error)",
        ),
    ),
    *mutations(
        "memwal/store/objects/s3.py",
        "tests/store/test_s3_faults.py",
        (
            "s3: marks of empty folders are objects",
            "                if not all(file.size_bytes for file in page):",
            "                if False:",
        ),
        (
            "s3: reads stay in the region where the bucket is not",
            "            self._place = place_of(self._client, self._bucket)\n            return",
            "            return",
        ),
    ),
    *mutations(
        "memwal/store/objects/s3_client.py",
        "tests/store/test_s3_faults.py",
        (
            "s3: where keys can't be renewed, objects are missing",
            "        except OSError as error:  # of",
            "        except ZeroDivisionError as error:  # of",
        ),
        (
            "s3: reads keep the keys that they were given first",
            "            if place not in self._readers or self._readers[place][0] != keys:",
            "            if place not in self._readers:",
        ),
    ),
    *mutations(
        "memwal/store/objects/base.py",
        "tests/store/test_s3_faults.py",
        (
            "retries: a refusal shows the credentials that it quotes",
            " from None if isinstance(explained, BadCredentials) else error",
            " from error",
        ),
    ),
    *mutations(
        "memwal/store/objects/reads.py",
        "tests/store/test_clouds.py -m 'not integration'",
        (
            "clouds: writes that met are not tried again",
            "            status in (408, 409, 429)",
            "            status in (408, 429)",
        ),
        (
            "clouds: what only the text of an error tells is no refusal",
            "        or status_of(error) in (401, 403)\n",
            "",
        ),
    ),
    *mutations(
        "memwal/store/objects/base.py",
        _OBJECTS,
        (
            "objects: a short object is read as far as it goes",
            "            if size_bytes < end:",
            "            if False:",
        ),
        (
            "objects: an object of any size is read",
            "            check_object_size(self._address(path), size_bytes, size_bytes_max)",
            "            pass",
        ),
    ),
    *mutations(
        "memwal/store/objects/base.py",
        "tests/store/test_s3_faults.py",
        (
            "retries: requests have no deadline",
            "        return state.attempt_number >= attempts_max or passed + state.upcoming_sleep > seconds_max",
            "        return state.attempt_number >= attempts_max",
        ),
        (
            "retries: attempts have no bound",
            "        return state.attempt_number >= attempts_max or passed",
            "        return passed",
        ),
    ),
    *mutations(
        "memwal/store/objects/base.py",
        "tests/store/test_waits.py",
        (
            "retries: a store that never answered is waited for",
            "            return self._faults.passes(error) and not refused",
            "            return self._faults.passes(error)",
        ),
        (
            "retries: a store that answered is not waited for",
            "            _answered.add(self.store)\n",
            "",
        ),
    ),
    *mutations(
        "memwal/jobs/doctor/plan.py",
        _DOCTOR,
        (
            "doctor: a race may have several winners",
            "    if crowds:",
            "    if False:",
        ),
        (
            "doctor: what a race's loser put may be stored",
            "    elif other:",
            "    elif False:",
        ),
        (
            "doctor: a race that nobody won is a yes",
            "    ok: bool | None = bool(won) or None",
            "    ok: bool | None = True",
        ),
        (
            "doctor: a store's clock may be anything",
            "ok=abs(seconds) <= CLOCK_SECONDS_MAX",
            "ok=True",
        ),
        (
            "doctor: credentials that are refused are a store's fault",
            "    if isinstance(error, BadCredentials):\n        return",
            "    if False:\n        return",
        ),
    ),
    *mutations(
        "memwal/jobs/doctor/apply.py",
        _DOCTOR,
        (
            "doctor: what it put stays",
            "            left = self.scratch.remove(self._paths)",
            "            left = 0",
        ),
        (
            "doctor: what is read after a replacement is not compared",
            "or stored != data:",
            "or stored is None:",
        ),
        (
            "doctor: a delete that says it deleted is believed",
            "still = [path for path in gone if objects.exists(path)]",
            "still: list[str] = []",
        ),
    ),
    *mutations(
        "memwal/jobs/doctor/store.py",
        _DOCTOR,
        (
            "doctor: what another run put a moment ago is a leftover",
            "if info.modified_at_nanos < old]",
            "if not info.path.startswith(self._run)]",
        ),
        (
            "doctor: it deletes through a link",
            "            check_way(uri, self._run)",
            "            pass",
        ),
    ),
    *mutations(
        "memwal/store/objects/opening.py",
        "tests/store/test_put_proof.py -m 'not integration'",
        (
            "proof: a store whose second put wins will do",
            "        if first and stored == _SECOND:",
            "        if False:",
        ),
        (
            "proof: what is stored is not looked at",
            "        if not second and stored == _FIRST:",
            "        if not second:",
        ),
        (
            "proof: a put that replaces and says so will do",
            "        if not second and stored == _FIRST:",
            "        if stored in (_FIRST, _SECOND):",
        ),
        (
            "proof: an unclear answer is a no",
            "        if first and stored == _SECOND:",
            "        if stored != _FIRST:",
        ),
        (
            "proof: a yes holds for every store",
            "    if objects.store not in _proven:",
            "    if not _proven:",
        ),
        (
            "proof: a fault is remembered as a yes",
            "        prove_put_if_absent(objects, clock)\n        _proven.add(objects.store)",
            "        _proven.add(objects.store)\n        prove_put_if_absent(objects, clock)",
        ),
    ),
    *mutations(
        "memwal/store/tables/manifests.py",
        "tests/store/test_manifests.py -k footer_that_points",
        (
            "table manifests: an offset may lead out of the file",
            "        if offset >= size:",
            "        if False:",
        ),
    ),
)

_STORED_SNAPSHOTS = mutations(
    "memwal/jobs/snapshot/store.py",
    "tests/jobs/snapshot/test_snapshot.py -m 'not spark' -k 'external or garbage_where or repaired'",
    (
        "snapshot: an external file is not written",
        "            self._objects.put(external_path(index_uuid), data)",
        "            pass",
    ),
)

_READ_SNAPSHOTS = (
    *mutations(
        "memwal/store/shards/snapshots.py",
        "tests/read/test_read_consistency.py",
        (
            "shard snapshot: one that was not confirmed is read",
            "        if found.taken_at_millis != state.snapshot_ts_millis:",
            "        if False:",
        ),
        (
            "shard snapshot: other bytes than were confirmed are read",
            "        if _digest(data) != confirmed.sha256:",
            "        if False:",
        ),
        (
            "shard snapshot: one that was cut off is not found",
            "            path = external_path(str(confirmed.index_uuid))",
            "            path = external_path(state.index_uuid)",
        ),
        (
            "shard snapshot: it may have a shard twice",
            "    if len({manifest.shard_id for manifest in found}) < len(found):",
            "    if False:",
        ),
        (
            "shard snapshot: shards may be missing",
            "        if len(found) != state.num_shards:",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/snapshot/store.py",
        "tests/read/test_read_consistency.py -k 'not_confirmed'",
        (
            "snapshot: one that nobody confirmed is taken for fresh",
            "return Stored.SAME if self._stored.is_confirmed(state, data) else Stored.UNCONFIRMED",
            "return Stored.SAME",
        ),
    ),
    *mutations(
        "memwal/read/table.py",
        "tests/read/test_read_consistency.py -k 'collected_since or goes_with'",
        (
            "read: what a snapshot lists and is gone is lost",
            "                if view.taken_at_millis is not None:",
            "                if False:",
        ),
        (
            "read: the WAL is read beside a snapshot of shards",
            '        if with_wal and request.consistency == "snapshot":',
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/verify/plan.py",
        "tests/jobs/verify/test_verify_plan.py -k 'spec or snapshot'",
        (
            "verify: an id may be given to another spec",
            "            if known.setdefault(spec.spec_id, spec) != spec:",
            "            if known.setdefault(spec.spec_id, spec) is None:",
        ),
        (
            "verify: a snapshot may be newer than the manifests",
            "        elif row.version > current.manifest.version:",
            "        elif False:",
        ),
        (
            "verify: a snapshot may say other things than the manifest",
            "                if _show(getattr(row, name)) != _show(getattr(of, name))",
            "                if False",
        ),
    ),
)

_RUNS = (
    *mutations(
        "memwal/store/records/runs.py",
        f"tests/store/test_run_records.py {_FAST}",
        (
            "runs: another job's record of the same moment is taken for this one",
            "                if self._objects.get(path, RECORD_BYTES_MAX) == data:",
            "                if True:",
        ),
    ),
    *mutations(
        "memwal/run/options.py",
        "tests/cli/test_log_format.py",
        (
            "runs: any text is a run's id",
            "    if not re.fullmatch(RUN_ID, given):",
            "    if False:",
        ),
    ),
)

_FULL = "tests/faults/test_disk_full.py -k 'makes_space or leaves_some or under_a_job and (merge or garbage)'"

_FULL_DISKS = (
    *mutations(
        "memwal/run/tables.py",
        _FULL,
        (
            "full disk: what is kept for garbage is kept from it",
            "            free_reserve(self.stores.objects)",
            "            pass",
        ),
        (
            "full disk: a job leaves nothing for garbage",
            "        if not frees:\n            self.keep_reserve()",
            "        if False:\n            self.keep_reserve()",
        ),
    ),
    *mutations(
        "memwal/jobs/garbage/job.py",
        _FULL,
        (
            "full disk: garbage puts nothing back",
            "            if run.garbage.acted:",
            "            if False:",
        ),
    ),
    *mutations(
        "memwal/store/records/checkpoints.py",
        _FULL,
        (
            "full disk: a checkpoint that can't be expired can't be dropped",
            "            unexpired = error\n",
            "            raise\n",
        ),
    ),
    *mutations(
        "memwal/store/objects/full_disk.py",
        _FULL,
        (
            "full disk: nothing is said of what to do",
            " if full and _HINT not in text",
            " if False",
        ),
    ),
)

_PACE = "tests/store/test_pace.py"
_PACES = (
    *mutations(
        "memwal/store/objects/base.py",
        _PACE,
        (
            "pace: a SlowDown slows none of the store's other requests",
            "                    pace.slow_down()",
            "                    pass",
        ),
    ),
    *mutations(
        "memwal/store/objects/pace.py",
        _PACE,
        (
            "pace: requests_per_second_max is no bound",
            "1 / min(rate_max or math.inf, self._rate(now))",
            "1 / self._rate(now)",
        ),
        (
            "pace: a bound is all that slows requests down",
            "1 / min(rate_max or math.inf, self._rate(now))",
            "1 / (rate_max or math.inf)",
        ),
        (
            "pace: each table has one of its own",
            "    key = store, clock\n",
            "    key = object(), clock\n",
        ),
        (
            "pace: who asks most is served most",
            "self._last_rounds.get(table, self._round - 1) + 1",
            "self._round",
        ),
        (
            "pace: those on the way slow down once more each",
            "            if now - self._slowed_at >= 1:\n",
            "            if True:\n",
        ),
        (
            "pace: Lance has no bound",
            "    share = rate * _LANCE_SHARE\n",
            "    return dict(storage_options)\n",
        ),
    ),
    *mutations(
        "memwal/run/units.py",
        _PACE,
        (
            "pace: each task asks a store as often as all may",
            "split_rate(unit.storage_options, processes)",
            "split_rate(unit.storage_options, 1)",
        ),
    ),
)

STORE: tuple[Mutation, ...] = (
    *_PACES,
    *_FULL_DISKS,
    *_NAMES,
    *_BYTES,
    *_SHARD_MANIFESTS,
    *_FENCES,
    *_LEASES,
    *_STORES,
    *_STORED_SNAPSHOTS,
    *_READ_SNAPSHOTS,
    *_RUNS,
)
