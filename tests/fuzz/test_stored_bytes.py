"""Bytes out of storage, damaged in every way: a clear error or an honest answer, and nothing else.

The samples are what pylance and memwal write. What a parser may raise is in its contract, and names
the file; a crash, a hang, a path outside the table or an allocation by a forged length is none of
it.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from memwal.errors import Corruption, MemWalError, Refused, Unsupported
from memwal.format import layout
from memwal.format._generated import memwal_pb2 as pb
from memwal.format.codec import decode_shard_manifest, encode_shard_manifest
from memwal.format.layout import LEASE, lease_claim_path
from memwal.jobs.garbage.model import RetainedVersion
from memwal.jobs.garbage.store import versions as retained_versions
from memwal.jobs.garbage.store.cache import make_digest
from memwal.jobs.garbage.store.versions import RetainedVersions
from memwal.jobs.rescue.store import StoredShardWal
from memwal.jobs.snapshot.plan import Stored
from memwal.jobs.snapshot.store import StoredSnapshots
from memwal.model import LeaseClaim, MemWalState, ShardManifest, VersionManifest
from memwal.ports import check_object_path
from memwal.report import RunRecord
from memwal.store.records.lease import StoredLeases
from memwal.store.records.runs import StoredRunRecords, record_path
from memwal.store.shards.manifests import ShardManifests
from memwal.store.shards.snapshots import ShardSnapshots, external_path
from memwal.store.shards.wal import WalEntries
from memwal.store.tables.manifests import DATA_FOOTER_BYTES, TableManifests, check_data_file
from memwal.testing import ManualClock, MemoryObjects
from tests.fuzz import real_bytes
from tests.fuzz.attack import attack
from tests.fuzz.damage import HOSTILE_TEXTS, damaged, forged, odd_json
from tests.fuzz.real_bytes import SHARD

# The samples are files of a real table.
pytestmark = pytest.mark.integration


# ---- shard manifests


def check_shard(manifest: ShardManifest) -> None:
    """Whatever it says, its generations are folders of this shard."""
    for generation in manifest.flushed_generations:
        folder = layout.generation_folder(SHARD, generation.path, generation.generation)
        assert check_object_path(folder).startswith(f"_mem_wal/{SHARD}/")
        assert folder.count("/") == 2
    data = encode_shard_manifest(manifest)
    again = decode_shard_manifest(data, shard_id=SHARD, version=manifest.version)
    assert replace(again, raw=b"") == replace(manifest, raw=b"")


def test_shard_manifests() -> None:
    samples = real_bytes.shard_manifests()
    version = len(samples)
    path = layout.shard_manifest_path(SHARD, version)

    def check(data: bytes) -> None:
        objects = MemoryObjects()
        objects.put(path, data)
        manifests = ShardManifests(objects)
        for read in (lambda: manifests.latest(SHARD), lambda: manifests.read(SHARD, version)):
            try:
                found = read()
            except (Corruption, Unsupported) as error:
                assert path in str(error)
            else:
                assert found is not None
                check_shard(found)

    newest = max(samples, key=lambda data: pb.ShardManifest.FromString(data).version)
    attack("shard manifest, damaged", damaged(newest, *samples), check)
    attack("shard manifest, forged", forged(pb.ShardManifest, newest), check)


def test_version_hints() -> None:
    samples = real_bytes.shard_manifests()
    numbers = [pb.ShardManifest.FromString(data).version for data in samples]

    def check(data: bytes) -> None:
        objects = MemoryObjects()
        objects.put(layout.version_hint_path(SHARD), data)
        for number, sample in zip(numbers, samples, strict=True):
            objects.put(layout.shard_manifest_path(SHARD, number), sample)
        found = ShardManifests(objects).latest(SHARD)
        assert found is not None
        assert found.version == max(numbers), "a hint hides no newer manifest"
        assert objects.counts.get < 40

    attack("version hint", odd_json({"version": max(numbers)}), check)


# ---- table manifests and the index details in them


def check_version(manifest: VersionManifest) -> None:
    state = manifest.mem_wal
    for shard in () if state is None else state.merged:
        assert layout.is_shard_folder(shard)
    for entry in manifest.indexes:
        assert check_object_path(external_path(entry.uuid)).startswith("_indices/")


def read_version(data: bytes, version: int) -> None:
    path = f"{layout.VERSIONS}/{layout.table_manifest_names(version)[0]}"
    objects = MemoryObjects()
    objects.put(path, data)
    # A short tail, so that the blocks are fetched by the offsets that the file names.
    for tail_bytes in (64, 64 * 1024):
        try:
            manifests = TableManifests(objects, tail_bytes=tail_bytes)
            check_version(manifests.read(version))
            assert manifests.facts(path, version).manifest.version == version
        except (Corruption, Unsupported) as error:
            assert path in str(error)


def test_table_manifests() -> None:
    manifests = real_bytes.table_manifests()
    newest = max(manifests)
    samples = [manifests[newest], *manifests.values()]
    attack("table manifest, damaged", damaged(*samples), lambda d: read_version(d, newest))


def test_index_details() -> None:
    manifests = real_bytes.table_manifests()
    newest = max(manifests)
    sample = manifests[newest]
    place = struct.unpack("<q", sample[-16:-8])[0]
    message = pb.Manifest.FromString(sample[place + 4 : -16])
    at = message.index_section
    (length,) = struct.unpack("<I", sample[at : at + 4])
    section = pb.IndexSection.FromString(sample[at + 4 : at + 4 + length])
    (entry,) = (i for i in section.indices if i.name == layout.MEM_WAL_INDEX_NAME)

    def with_section(data: bytes) -> bytes:
        message.index_section = 0
        body = message.SerializeToString()
        head = struct.pack("<I", len(data)) + data
        framed = struct.pack("<I", len(body)) + body
        return head + framed + struct.pack("<q", len(head)) + sample[-8:]

    def with_details(data: bytes) -> bytes:
        changed = pb.IndexSection.FromString(section.SerializeToString())
        for index in changed.indices:
            if index.name == layout.MEM_WAL_INDEX_NAME:
                index.index_details.value = data
        return with_section(changed.SerializeToString())

    details = entry.index_details.value
    sections = forged(pb.IndexSection, section.SerializeToString())
    attack("index section, forged", sections, lambda d: read_version(with_section(d), newest))
    attack(
        "index details, damaged", damaged(details), lambda d: read_version(with_details(d), newest)
    )
    attack(
        "index details, forged",
        forged(pb.MemWalIndexDetails, details),
        lambda d: read_version(with_details(d), newest),
    )


# ---- WAL entries


def big_entry() -> bytes:
    schema = pa.schema(
        [pa.field("id", pa.int64()), pa.field("text", pa.list_(pa.string()))],
        metadata={"writer_epoch": "4", "generation": "2"},
    )
    out = io.BytesIO()
    with pa.ipc.new_stream(out, schema) as stream:
        for start in (0, 50):
            ids = list(range(start, start + 50))
            texts = pa.array([[f"t{i}"] * (i % 3) for i in ids], pa.list_(pa.string()))
            stream.write_batch(pa.record_batch([pa.array(ids), texts], schema=schema))
    return out.getvalue()


def test_wal_entries() -> None:
    path = layout.wal_entry_path(SHARD, 7)

    def check(data: bytes) -> None:
        objects = MemoryObjects()
        objects.put(path, data)
        entries = WalEntries(objects)
        before = pa.total_allocated_bytes()
        for read in (lambda: entries.rows(SHARD, 7), lambda: entries.head(path, len(data))):
            try:
                read()
            except (Corruption, Refused) as error:
                assert path in str(error)
        (found,) = entries.describe(SHARD, entries.list_entries(SHARD))
        assert found.position == 7
        assert pa.total_allocated_bytes() - before < 10_000_000

    attack("WAL entry", damaged(*real_bytes.wal_entries(), big_entry()), check, weight=2)


# ---- data files of generations


def test_footers_of_data_files() -> None:
    """What passes asks Lance for no more room than the file has."""
    samples = [
        data for path, data in real_bytes.files().items() if "_gen_" in path and "/data/" in path
    ]
    for sample in samples:
        check_data_file(sample[-DATA_FOOTER_BYTES:], len(sample))

    def check(data: bytes) -> None:
        try:
            check_data_file(data[-DATA_FOOTER_BYTES:], len(data))
        except Corruption:
            return
        buffers, columns = struct.unpack("<II", data[-16:-8])
        assert 16 * (buffers + columns) <= len(data)

    attack("data file, footer", damaged(*(data[-200:] for data in samples)), check)


# ---- snapshots


def test_snapshots_are_compared_and_not_parsed_unless_they_are_as_they_were_confirmed() -> None:
    """Lance's reader ends the process on some of these (`b"\xff"` in a footer's counts)."""
    ours = bytes(range(256)) * 8

    def check(data: bytes) -> None:
        state = make_snapshot_state()
        objects = MemoryObjects()
        ShardSnapshots(objects).confirm(taken_at_millis=7, index_uuid=SHARD, data=ours)
        snapshots = StoredSnapshots(objects, None)  # type: ignore[arg-type]
        expected = Stored.SAME if data == ours else Stored.OTHER
        assert snapshots.compare(state, ours) is Stored.NONE
        assert snapshots.compare(replace(state, inline_snapshots=data), ours) is expected
        objects.put(external_path(SHARD), data)
        assert snapshots.compare(state, ours) is expected
        assert objects.counts.bytes_read <= 3 * len(ours)
        read = ShardSnapshots(objects).read_bytes(state)
        assert read == (ours if data == ours else "the snapshot is not what was stored")

    attack("snapshot, inline and external", damaged(ours), check)


def test_confirmations_of_snapshots() -> None:
    def check(data: bytes) -> None:
        objects = MemoryObjects()
        objects.put("_maintenance/snapshot.json", data)
        read = ShardSnapshots(objects).read_bytes(make_snapshot_state(inline_snapshots=b"ours"))
        assert read == b"ours" or "confirm" in str(read) or "not what was stored" in str(read)

    sample = {"format": 1, "taken_at_millis": 7, "index_uuid": SHARD, "sha256": "0" * 64}
    attack("confirmation of a snapshot", odd_json(sample), check)


def make_snapshot_state(inline_snapshots: bytes | None = None) -> MemWalState:
    state = MemWalState(index_uuid=SHARD, created_at_millis=0, merged={}, index_catchup={})
    return replace(state, snapshot_ts_millis=7, inline_snapshots=inline_snapshots)


# ---- lease claims

CLAIM = LeaseClaim(
    token=3,
    claim_id="22222222-2222-4222-8222-222222222222",
    holder="user@host:1",
    job="merge",
    acquired_at_nanos=1_750_000_000_000_000_000,
    expires_at_nanos=1_750_000_300_000_000_000,
)


def check_lease(claim: bytes, hint: bytes) -> None:
    objects = MemoryObjects(clock=ManualClock())
    objects.put(lease_claim_path(3), claim)
    objects.put(f"{LEASE}/hint.json", hint)
    leases = StoredLeases(objects, ManualClock(), holder="me")
    before = dict(objects.bucket.objects)

    for act in (
        leases.current,
        leases.glance,
        lambda: leases.check(2),
        lambda: leases.acquire("merge"),
    ):
        try:
            act()
        except MemWalError as error:
            assert error.exit_code in (4, 8)
            assert "memory://table" in str(error)

    written = objects.bucket.objects.keys() - before.keys()
    assert written <= {lease_claim_path(4)}, "only the next claim may be written"


def test_lease_claims() -> None:
    hint, claim = json.dumps({"token": 3}).encode(), json.dumps(asdict(CLAIM)).encode()
    attack("lease claim", odd_json(asdict(CLAIM)), lambda data: check_lease(data, hint))
    attack("lease hint", odd_json({"token": 3}), lambda data: check_lease(claim, data))


# ---- run records

RECORD = RunRecord(
    run_id="a" * 32,
    job="merge",
    started_at="2026-11-21T10:00:00+00:00",
    finished_at="2026-11-21T10:00:05+00:00",
    seconds=5.0,
    outcome="done",
    exit_code=0,
    holder="user@host:1",
)


def test_run_records() -> None:
    def check(data: bytes) -> None:
        objects = MemoryObjects()
        objects.put(record_path(RECORD), data)
        found = StoredRunRecords(objects).newest(10)
        assert len(found.records) + found.unreadable == 1

    attack("run record", odd_json(RECORD.model_dump()), check)


# ---- tags, branches, and what is remembered of retained versions


def read(
    retained: RetainedVersions, *, verified: bool
) -> tuple[tuple[RetainedVersion, ...], list[Exception]]:
    with ThreadPoolExecutor(1) as pool:
        return retained.read(pool, verified=verified)


def test_tags_and_branches_and_names_of_these() -> None:
    def check(data: bytes) -> None:
        objects = MemoryObjects()
        objects.put("_refs/tags/one.json", data)
        objects.put("_refs/branches/two.json", data)
        retained = RetainedVersions(objects)
        versions, problems = read(retained, verified=True)
        assert versions == ()
        assert [type(problem) for problem in problems] == [Corruption], "the branch is missing"
        try:
            assert all(isinstance(number, int) for number in retained.read_referenced())
        except Corruption as error:
            assert "_refs/" in str(error)

    tag = {"branch": None, "version": 1, "parentBranch": None, "parentVersion": 1}
    attack("tag, branch", odd_json(tag), check)
    # A branch whose name climbs is told as missing, and nothing outside the table is asked for.
    for name in HOSTILE_TEXTS:
        objects = MemoryObjects()
        objects.bucket.objects[f"_refs/branches/{name}.json"] = (b"{}", 0)
        assert len(read(RetainedVersions(objects), verified=True)[1]) == 1


RETAINED = f"{layout.MAINTENANCE}/cache/retained_versions.json"


def test_the_cache_of_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained_versions, "_CACHED_VERSIONS_MIN", 0)
    manifests = real_bytes.table_manifests()

    def stored() -> MemoryObjects:
        objects = MemoryObjects()
        for version, data in manifests.items():
            objects.put(f"{layout.VERSIONS}/{layout.table_manifest_names(version)[0]}", data)
        return objects

    first = stored()
    remembered = RetainedVersions(first)
    truth, _ = read(remembered, verified=True)
    remembered.remember(lambda: None)
    sample = json.loads(first.get(RETAINED))

    def check(data: bytes) -> None:
        objects = stored()
        objects.put(RETAINED, data)
        retained = RetainedVersions(objects)
        assert [v.version for v in read(retained, verified=False)[0]] == [v.version for v in truth]
        assert read(retained, verified=True)[0] == truth, "what is acted on was read"

    def signed(data: bytes) -> bytes:
        """The forger knows how the digest is made."""
        try:
            document = json.loads(data)
            document["sha256"] = make_digest(document["body"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return data
        return json.dumps(document).encode()

    for odd in (False, 0, 7, "3", -1, None):
        for place, (file, entry) in enumerate(sample["body"]):
            entries = [*sample["body"]]
            entries[place] = [file, {**entry, "version": odd}]
            check(signed(json.dumps({**sample, "body": entries}).encode()))
    attack("cache of versions", odd_json(sample), check)
    attack("cache of versions, signed", odd_json(sample).map(signed), check)


# ---- rescue marks

MARK = {
    "format": 1,
    "writer_epoch": 2,
    "highest_position": 7,
    "sign": "entry 7",
    "sign_at_nanos": 1_750_000_000_000_000_000,
}


def test_rescue_marks() -> None:
    path = layout.rescue_mark_path(SHARD)

    def check(data: bytes) -> None:
        objects = MemoryObjects()
        objects.put(path, data)
        evidence = StoredShardWal(objects)
        try:
            evidence._mark(SHARD)
        except Corruption as error:
            assert path in str(error)

    attack("rescue mark", odd_json(MARK), check)


# ---- names


def test_names() -> None:
    real = {part.encode() for path in real_bytes.files() for part in path.split("/")}
    parsers: list[Callable[[str], object]] = [
        layout.parse_shard_manifest_name,
        layout.parse_wal_entry_name,
        layout.parse_table_manifest_name,
        layout.parse_generation_folder,
        layout.parse_run_record_name,
        lambda name: name if layout.is_shard_folder(name) else None,
    ]

    def check(data: bytes) -> None:
        name = data.decode(errors="surrogatepass")
        if any(parse(name) is not None for parse in parsers):
            assert check_object_path(name) == name
            assert "/" not in name and name.isascii() and name.isprintable()

    texts = st.text(max_size=90) | st.sampled_from(HOSTILE_TEXTS)
    wild = texts.map(lambda text: text.encode(errors="surrogatepass"))
    near = damaged(*sorted(real)).map(lambda data: data.decode(errors="replace").encode())
    attack("name", wild | near, check)
