"""Names in storage <-> values. Pure; everything that comes from storage is parsed strictly.

Where the spec and pylance 14's bytes differ, the bytes win:

- WAL entries end in `.arrow`; the spec's text says `.lance` in one place, `.arrow` in its example.
- WAL positions are 1-based, 0 = nothing covered; the spec says 0-based.
- An index that is absent from `index_catchup` is not known to be caught up; the spec says it is.
- A reader must skip a generation at or below the merge watermark; the spec allows both.
- Deletes are rows with `_tombstone = true`; a shard can be SEALED; a manifest carries
  `shard_field_entries`; a table may have no primary key. The spec has none of these.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from difflib import get_close_matches
from typing import TYPE_CHECKING, cast
from uuid import UUID

from memwal.errors import Corruption, Usage
from memwal.text import name_some

if TYPE_CHECKING:
    from memwal.model import ShardId

MEM_WAL = "_mem_wal"
MAINTENANCE = "_maintenance"
RUNS = f"{MAINTENANCE}/runs"
RESCUES = f"{MAINTENANCE}/rescue"
# Short-lived objects; what a killed run leaves here is garbage after a day.
STAGING = f"{MAINTENANCE}/tmp"
INGESTS = f"{MAINTENANCE}/ingest"
LEASE = f"{MAINTENANCE}/lease"
CHECKPOINTS = f"{MAINTENANCE}/checkpoints"
SETTLED = f"{MAINTENANCE}/settled"
ADOPTED = f"{MAINTENANCE}/adopted"
RESERVE = f"{MAINTENANCE}/reserve"
# What a repair replaced or moved away, by run; nothing reads it.
QUARANTINE = f"{MAINTENANCE}/quarantine"
BACKUPS = f"{MAINTENANCE}/backups"
BACKUP_MARK = f"{BACKUPS}/unfinished"
ERASURES = f"{MAINTENANCE}/erasures"
CURSORS = f"{MAINTENANCE}/cursors"
VERSIONS = "_versions"
TRANSACTIONS = "_transactions"
TABLE_HINT = f"{VERSIONS}/latest_version_hint.json"
BRANCHES = "tree"
MEM_WAL_INDEX_NAME = "__lance_mem_wal"
# Indexes that Lance keeps for itself: no generation is read through them.
SYSTEM_INDEXES = frozenset({MEM_WAL_INDEX_NAME, "__lance_frag_reuse"})
TOMBSTONE = "_tombstone"

U64_MAX = 2**64 - 1
LEAP_MIN = 10**6
"""By so much a restore raises a shard's epoch and WAL position at least, and by far more as a rule:
to the time in microseconds. Epochs as far apart have a restore in between.
"""
_STOPPER_MARK = b"\x07collected"
STOPPER_BYTES = len(_STOPPER_MARK) + 8
# Lance marks versions of detached commits by the top bit; such names start with a `d`.
DETACHED_BIT = 1 << 63

# 64 bits have at most 20 digits; int() refuses thousands of them with an error of its own.
_GENERATION_FOLDER = re.compile(r"[0-9a-f]{8}_gen_(0|[1-9][0-9]{0,19})")
_BITS = re.compile(r"[01]{64}")
# What pylance writes on a local disk, before it takes the name of an entry or a manifest.
STAGED_NAME = r"[01]{64}\.(arrow|binpb)\.tmp\.[0-9a-f]{32}(#[0-9]+)?"
"""A file that is yet to become a WAL entry or a shard's manifest."""
_DECIMAL = re.compile(r"(0|[1-9][0-9]{0,19})")
_V2 = re.compile(r"[0-9]{20}")
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_RUN_RECORD = re.compile(r"([0-9]{19})-([0-9a-f]{32})\.json")
_INGEST_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_INGEST_ROUND = re.compile(r"[0-9]{6}")
_LEASE_CLAIM = re.compile(r"([0-9]{20})\.json")
# What Lance takes in a tag, with an end of its own; a dot stands alone, and at neither end.
# Backups and cursors have such names, too.
_CHECKPOINT_NAME = re.compile(r"(?=.{1,64}\Z)[A-Za-z0-9][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")
_CHECKPOINT_ID = re.compile(r"[0-9a-f]{8}")
_ERASURE_ID = re.compile(r"[0-9a-f]{8}")
_SEQUENCE = re.compile(r"([0-9]{12})\.json")
_AUDITED = re.compile(r"([0-9]{12})\.jsonl")
_AUDITED_MAX = 10**12
_NO_SLUG = re.compile(r"[^A-Za-z0-9._-]+")
_SLUG_CHARACTERS_MAX = 60
_NANOS_MAX = 2**63 - 1
_SHARDS_NAMED_MAX = 5
_LIKENESS_MIN = 0.75  # of two texts, from 0 to 1; random ids are less alike
# What file managers, NFS clients and editors leave behind. A copy under a name that was changed a
# little is none if it may be one of a shard, a generation, an entry or a manifest.
_LEAVING = re.compile(
    r"\.DS_Store|\._.+|\.nfs[0-9a-f]+|\.fuse_hidden[0-9a-f]+|\.directory|Thumbs\.db|desktop\.ini"
    r"|\..+\.sw[a-p]|(?!.*(?:_gen_|[01]{64}|[0-9a-f]{8}-))(?:.+~|#.+#|\.#.+)"
)


def bit_reversed(value: int) -> str:
    """The 64-character name of a WAL position or manifest version: 5 -> `1010…0`.

    Raises ValueError outside 0 … 2**64-1. Source: spec, WAL Storage Layout.
    """
    if not 0 <= value <= U64_MAX:
        raise ValueError(f"{value} does not fit into 64 bits")
    return format(value, "064b")[::-1]


def from_bit_reversed(name: str) -> int:
    """The value that `bit_reversed` wrote. Raises ValueError for any other text."""
    if not _BITS.fullmatch(name):
        raise ValueError(f"{name!r} is not a bit-reversed 64-bit name")
    return int(name[::-1], 2)


def parse_shard_id(text: str) -> ShardId:
    """A shard id as a person types it, canonical. Raises Usage when it isn't a UUID."""
    try:
        return cast("ShardId", str(UUID(text)))
    except ValueError:
        raise Usage(f"{text!r} is not a shard id: expected a UUID such as {UUID(int=0)}") from None


def parse_shard(text: str) -> str:
    """A shard id as a person types it, or the beginning of one, in canonical form.

    Raises Usage for any other text. `find_shard` resolves the result to a shard.
    """
    digits = text.strip().removesuffix("…").replace("-", "").lower()
    if not re.fullmatch("[0-9a-f]{1,31}", digits):
        return parse_shard_id(text)
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "-".join(filter(None, parts))


def find_shard(asked: str, there: Collection[str], where: str) -> ShardId:
    """The one shard that has this id, or whose id begins so. Raises Usage, which names some."""
    found = [asked] if asked in there else sorted(s for s in there if s.startswith(asked))
    if len(found) == 1:
        return cast("ShardId", found[0])
    if found:
        text = f"{len(found)} shards begin with {asked}: "
        raise Usage(f"{where}: {text}{', '.join(name_some(found, _SHARDS_NAMED_MAX, 'shards'))}")
    beginnings = {shard[: len(asked)]: shard for shard in there}
    near = get_close_matches(asked, beginnings, cutoff=_LIKENESS_MIN)
    meant = f" (is {' or '.join(beginnings[text] for text in near)} meant?)" if near else ""
    raise Usage(f"{where}: the table has no shard {asked}{meant}")


def is_shard_folder(name: str) -> bool:
    """Whether a folder under `_mem_wal/` is a shard: a UUID in canonical lower-case text."""
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False


def is_litter(name: str) -> bool:
    """Whether an operating system or an editor leaves files of that name in folders."""
    return _LEAVING.fullmatch(name) is not None


def is_staged(name: str) -> bool:
    """Whether a file of that name is yet to become a WAL entry or a shard's manifest."""
    return re.fullmatch(STAGED_NAME, name) is not None


def shard_folder(shard_id: ShardId) -> str:
    """`_mem_wal/{shard}`, below the table's root."""
    return f"{MEM_WAL}/{shard_id}"


def manifest_folder(shard_id: ShardId) -> str:
    """The folder of a shard's manifests."""
    return f"{shard_folder(shard_id)}/manifest"


def wal_folder(shard_id: ShardId) -> str:
    """The folder of a shard's WAL entries."""
    return f"{shard_folder(shard_id)}/wal"


def shard_manifest_path(shard_id: ShardId, version: int) -> str:
    """Path of one shard manifest version."""
    return f"{manifest_folder(shard_id)}/{bit_reversed(version)}.binpb"


def encode_version_hint(version: int) -> bytes:
    """The bytes of `version_hint.json`, as pylance writes them."""
    return json.dumps({"version": version}, separators=(",", ":")).encode()


def encode_stopper(written_at_nanos: int) -> bytes:
    """The placeholder for a collected shard manifest whose name has to stay taken.

    It records when the manifest was written. No Protobuf message begins like it, so a reader that
    takes it for a manifest fails; and no shard's manifest is as short.
    """
    return _STOPPER_MARK + max(0, written_at_nanos).to_bytes(8)


def decode_stopper(data: bytes) -> int | None:
    """When the manifest that a stopper replaces was written; None if `data` is not a stopper."""
    if len(data) != STOPPER_BYTES or not data.startswith(_STOPPER_MARK):
        return None
    return int.from_bytes(data[len(_STOPPER_MARK) :])


def version_hint_path(shard_id: ShardId) -> str:
    """Path of the best-effort hint at the latest manifest version."""
    return f"{manifest_folder(shard_id)}/version_hint.json"


def wal_entry_path(shard_id: ShardId, position: int) -> str:
    """Path of one WAL entry."""
    return f"{wal_folder(shard_id)}/{bit_reversed(position)}.arrow"


def generation_folder(shard_id: ShardId, path: str, generation: int) -> str:
    """The folder of a flushed generation. Raises Corruption for a forged path (invariant 10)."""
    return f"{shard_folder(shard_id)}/{check_generation_path(path, generation)}"


def private_index_path(shard_id: ShardId, path: str, generation: int) -> str:
    """The rows of a generation's own key index, which pylance's planners need."""
    return f"{generation_folder(shard_id, path, generation)}/_pk_index/page_data.lance"


def check_generation_path(path: str, generation: int) -> str:
    """`path` itself, if it has the form `{8 hex}_gen_{generation}`; Corruption otherwise."""
    match = _GENERATION_FOLDER.fullmatch(path)
    if match is None:
        text = f"generation path {path!r} does not have the form '<8 hex digits>_gen_<number>'"
        raise Corruption("MW-M04", text)
    if int(match[1]) != generation:
        text = f"generation path {path!r} does not belong to generation {generation}"
        raise Corruption("MW-M04", text)
    return path


def parse_generation_folder(name: str) -> int | None:
    """The generation number of a folder name, or None when it is not such a folder."""
    match = _GENERATION_FOLDER.fullmatch(name)
    return int(match[1]) if match else None


def parse_shard_manifest_name(name: str) -> int | None:
    """The version in `{bits}.binpb`, or None for any other file name."""
    return _parse_bits(name, "binpb")


def parse_wal_entry_name(name: str) -> int | None:
    """The position in `{bits}.arrow`, or None for any other file name."""
    return _parse_bits(name, "arrow")


def _parse_bits(name: str, extension: str) -> int | None:
    stem, _, found = name.partition(".")
    return from_bit_reversed(stem) if found == extension and _BITS.fullmatch(stem) else None


def versions_folder(branch: str | None = None) -> str:
    """`_versions`, or `tree/{branch}/_versions` (a branch name may hold slashes)."""
    return VERSIONS if branch is None else f"{BRANCHES}/{branch}/{VERSIONS}"


def table_manifest_names(version: int) -> tuple[str, str]:
    """A version's file name in both naming schemes: V2 (the default) first, then V1."""
    if not 0 < version <= U64_MAX:
        raise ValueError(f"{version} is not a table version")
    if version & DETACHED_BIT:
        return (f"d{version}.manifest", f"d{version}.manifest")
    return (f"{U64_MAX - version:020d}.manifest", f"{version}.manifest")


def parse_table_manifest_name(name: str) -> int | None:
    """The version that a file of a `_versions` folder holds, or None for another file.

    Both naming schemes and detached commits (`d{version}`) are understood. A V1 name has at most
    19 digits (versions stay below 2**63), so 20 digits are always V2.
    """
    stem, dot, extension = name.partition(".")
    if not dot or extension != "manifest":
        return None
    if stem.startswith("d") and _DECIMAL.fullmatch(stem[1:]):
        version = int(stem[1:])
        return version if DETACHED_BIT <= version <= U64_MAX else None
    if _V2.fullmatch(stem):
        version = U64_MAX - int(stem)
        return version if 0 < version < DETACHED_BIT else None
    if _DECIMAL.fullmatch(stem):
        version = int(stem)
        return version if 0 < version < DETACHED_BIT else None
    return None


def run_record_path(finished_at_nanos: int, run_id: str) -> str:
    """The path of a run record; names sort newest first, so a listing begins with the newest runs.

    `run_id` is as `name_run` returns it. Raises ValueError for a time or an id that does not fit
    into a name.
    """
    if not 0 <= finished_at_nanos <= _NANOS_MAX or not _RUN_ID.fullmatch(run_id):
        raise ValueError(f"not a run's time and id: {finished_at_nanos}, {run_id!r}")
    return f"{RUNS}/{_NANOS_MAX - finished_at_nanos:019d}-{run_id}.json"


def name_run(run_id: str) -> str:
    """A run's id as it is used in file names.

    Ids that come from outside may hold any characters: one that isn't 32 hex digits is hashed.
    """
    if _RUN_ID.fullmatch(run_id):
        return run_id
    return hashlib.sha256(run_id.encode()).hexdigest()[:32]


def parse_run_record_name(name: str) -> str | None:
    """The run's id in a record's file name (`name_run`), or None for any other file name."""
    match = _RUN_RECORD.fullmatch(name)
    return match[2] if match else None


def quarantine_path(run_id: str, path: str) -> str:
    """Where a repair keeps what was stored at `path`."""
    return f"{QUARANTINE}/{name_run(run_id)}/{path}"


def is_record(path: str) -> bool:
    """Whether a path is that of a document that memwal keeps for itself, checkpoints aside."""
    aside = (f"{QUARANTINE}/", f"{STAGING}/", f"{CHECKPOINTS}/")
    return (
        path.startswith(f"{MAINTENANCE}/")
        and path.endswith(".json")
        and not (path.startswith(aside) or is_litter(path.rpartition("/")[2]))
    )


def rescue_mark_path(shard_id: ShardId) -> str:
    """Path of the mark that a rescue of the shard is under way."""
    return f"{RESCUES}/{shard_id}.json"


def torn_folder(shard_id: ShardId) -> str:
    """The folder that keeps the bytes of a shard's torn WAL entries after a rescue dropped them."""
    return f"{MAINTENANCE}/torn/{shard_id}"


def torn_entry_path(shard_id: ShardId, position: int) -> str:
    """The path in that folder of the torn WAL entry at `position`."""
    return f"{torn_folder(shard_id)}/{bit_reversed(position)}.arrow"


def parse_ingest_id(text: str) -> str:
    """An ingest's id as a person types it. Raises Usage for one that can't be a folder's name."""
    if not _INGEST_ID.fullmatch(text):
        raise Usage(f"{text!r} is not an ingest's id: expected a-z, 0-9 and '-', 64 at most")
    return text


def ingest_folder(ingest_id: str) -> str:
    """The folder of an ingest's documents."""
    return f"{INGESTS}/{parse_ingest_id(ingest_id)}"


def ingest_round_folder(ingest_id: str, number: int) -> str:
    """The folder of one round of an ingest."""
    return f"{ingest_folder(ingest_id)}/{number:06d}"


def lease_claim_path(token: int) -> str:
    """Where a claim on the lease is stored."""
    return f"{LEASE}/{token:020d}.json"


def parse_lease_claim(path: str) -> int | None:
    """The token of the claim that is stored at a path, or None for any other path."""
    folder, _, name = path.rpartition("/")
    found = _LEASE_CLAIM.fullmatch(name) if folder == LEASE else None
    return None if found is None else int(found[1])


def parse_ingest_round(name: str) -> int | None:
    """The round's number in the name of an ingest round's folder, or None for any other name."""
    return int(name) if _INGEST_ROUND.fullmatch(name) else None


def is_ingest_id(name: str) -> bool:
    """Whether a folder of that name is an ingest's."""
    return _INGEST_ID.fullmatch(name) is not None


def parse_name(text: str, whose: str) -> str:
    """A checkpoint's, cursor's or backup's name as a person types it.

    Raises Usage for one that can't be in a tag or a file's name.
    """
    if not _CHECKPOINT_NAME.fullmatch(text):
        raise Usage(
            f"{text!r} is not a {whose}'s name: expected letters and digits of ASCII, '-', '_' "
            "and single dots between them, 64 characters at most"
        )
    return text


def settled_path(record_id: str) -> str:
    """Path of a record of settled generations. Raises ValueError when the id is not a UUID."""
    if not is_shard_folder(record_id):
        raise ValueError(f"{record_id!r} is no record's id")
    return f"{SETTLED}/{record_id}.json"


def checkpoint_path(key: str) -> str:
    """Path of the record of a checkpoint, whose key is `{name}.{8 hex digits}`."""
    return f"{CHECKPOINTS}/{key}.json"


def parse_checkpoint_path(path: str) -> str | None:
    """The checkpoint's key in the path of its record, or None for any other path."""
    key = path.removeprefix(f"{CHECKPOINTS}/").removesuffix(".json")
    name, _, end = key.rpartition(".")
    if path != checkpoint_path(key) or not _CHECKPOINT_ID.fullmatch(end):
        return None
    return key if _CHECKPOINT_NAME.fullmatch(name) else None


def checkpoint_tag(key: str) -> str:
    """The name of a checkpoint's tag, which nobody else gives to a tag."""
    return f"memwal-checkpoint.{key}"


def checkpoint_tag_path(key: str) -> str:
    """The path of a checkpoint's tag."""
    return tag_path(checkpoint_tag(key))


def tag_path(tag: str) -> str:
    """The path of a tag."""
    return f"_refs/tags/{tag}.json"


def cursor_path(name: str) -> str:
    """Path of the record of a cursor over changes."""
    return f"{CURSORS}/{name}.json"


def parse_cursor_path(path: str) -> str | None:
    """The cursor's name in the path of its record, or None for any other path."""
    name = path.removeprefix(f"{CURSORS}/").removesuffix(".json")
    return name if path == cursor_path(name) and _CHECKPOINT_NAME.fullmatch(name) else None


def parse_backup_name(text: str) -> str:
    """A backup's name as a person types it. Raises Usage for one that can't be a file's name."""
    return parse_name(text, "backup")


def backup_path(name: str) -> str:
    """Path of a backup's document. Raises Usage for a name that is none."""
    return f"{BACKUPS}/{parse_backup_name(name)}.pb"


def backup_objects_path(name: str) -> str:
    """Path of a backup's list of objects. Raises Usage for a name that is none."""
    return f"{BACKUPS}/{parse_backup_name(name)}.objects"


def parse_backup_path(path: str) -> str | None:
    """The backup's name in the path of its document, or None for any other path."""
    return _parse_backup(path, ".pb")


def parse_backup_objects_path(path: str) -> str | None:
    """The backup's name in the path of its list, or None for any other path."""
    return _parse_backup(path, ".objects")


def is_backed_up(path: str) -> bool:
    """Whether a backup may hold an object of that path: it lies in the table, and is a part of it.

    Of what memwal keeps, that is what says which generations were merged.
    """
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        return False
    return not path.startswith(f"{MAINTENANCE}/") or path.startswith((f"{SETTLED}/", f"{ADOPTED}/"))


def parse_shard_path(path: str) -> tuple[ShardId, str] | None:
    """The shard in the path of one of its objects, and the rest of it; None for any other path."""
    root, _, rest = path.partition("/")
    shard, _, within = rest.partition("/")
    return (cast("ShardId", shard), within) if root == MEM_WAL and is_shard_folder(shard) else None


def _parse_backup(path: str, extension: str) -> str | None:
    folder, _, file = path.rpartition("/")
    name = file.removesuffix(extension)
    if folder != BACKUPS or name == file or not _CHECKPOINT_NAME.fullmatch(name):
        return None
    return name


def parse_erasure_id(text: str) -> str:
    """An erasure's id as a person types it. Raises Usage for one that can't be a folder's name."""
    if not _ERASURE_ID.fullmatch(text):
        raise Usage(f"{text!r} is not an erasure's id: expected 8 hexadecimal digits")
    return text


def erasure_folder(erasure_id: str) -> str:
    """The folder of an erasure's record, its keys while it is open, and its proof."""
    return f"{ERASURES}/{parse_erasure_id(erasure_id)}"


def parse_erasure_folder(name: str) -> str | None:
    """The erasure's id in the name of its folder, or None for any other name."""
    return name if _ERASURE_ID.fullmatch(name) else None


def sequence_name(number: int) -> str:
    """A file name in a folder of numbered documents; names sort by number.

    Raises ValueError for a number that does not fit.
    """
    if not 0 <= number < 10**12:
        raise ValueError(f"{number} does not fit into a document's name")
    return f"{number:012d}.json"


def parse_sequence_name(name: str) -> int | None:
    """The number in the name of a numbered document, or None for any other file name."""
    match = _SEQUENCE.fullmatch(name)
    return int(match[1]) if match else None


def name_trail(address: str, place: str) -> str:
    """The folder of a table's audit trail: how its address ends, and a digest of its `place`."""
    slug = _NO_SLUG.sub("-", address.rstrip("/").rpartition("/")[2])[-_SLUG_CHARACTERS_MAX:]
    return f"{slug.strip('.-') or 'table'}-{hashlib.sha256(place.encode()).hexdigest()[:16]}"


def audit_path(trail: str, number: int) -> str:
    """The path of a document of a trail; names sort newest first, as those of run records do.

    Raises ValueError for a number that does not fit.
    """
    if not 0 < number < _AUDITED_MAX:
        raise ValueError(f"{number} does not fit into a document's name")
    return f"{trail}/{_AUDITED_MAX - number:012d}.jsonl"


def parse_audit_name(name: str) -> int | None:
    """The number in the name of a trail's document, or None for any other file name."""
    match = _AUDITED.fullmatch(name)
    return _AUDITED_MAX - int(match[1]) if match and int(match[1]) else None


def is_reserved(column: str) -> bool:
    """Whether a column's name is of those that Lance keeps for itself, `_tombstone` among them."""
    return column.startswith("_")


def is_detached(version: int) -> bool:
    """Whether the version was committed detached, so that `ds.versions()` does not show it."""
    return bool(version & DETACHED_BIT)
