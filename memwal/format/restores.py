"""What a restore writes under a version's name: its mark, then the version. Pure."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from memwal.errors import Corruption
from memwal.format._generated import memwal_pb2 as pb
from memwal.format.codec import FOOTER_BYTES, decode_footer, parse_message, unframe
from memwal.model import RestoreMark

_RESTORE_FORMAT = 1
# No Protobuf message begins like it, and no Lance file ends like what follows.
_RESTORE_MARK = b"\x07memwal restore\n"


def encode_restore_mark(mark: RestoreMark) -> bytes:
    """What stands in for the manifest of a version that a restore is about to write.

    Nobody can open a table whose latest version it is, and no commit can take its name.
    """
    message = pb.RestoreMark(
        format=_RESTORE_FORMAT, backup=mark.backup, objects_sha256=mark.objects_sha256
    )
    return _RESTORE_MARK + message.SerializeToString()


def decode_restore_mark(data: bytes) -> RestoreMark | None:
    """The mark in a version's file; None for any other. Raises Corruption for a newer format."""
    if not data.startswith(_RESTORE_MARK):
        return None
    message = parse_message(pb.RestoreMark, data.removeprefix(_RESTORE_MARK))
    if message.format != _RESTORE_FORMAT:
        raise Corruption("MW-A23", f"is a restore's mark of format {message.format}")
    return RestoreMark(backup=message.backup, objects_sha256=message.objects_sha256)


def encode_restored_manifest(
    data: bytes,
    *,
    version: int,
    now_nanos: int,
    transaction_file: str,
    config: Mapping[str, str],
) -> bytes:
    """A table manifest's file as a later version, which has the same rows and indexes.

    The transaction that the file may begin with is another version's, so nothing leads there.
    `config` is added to the table's configuration.
    """
    position = decode_footer(data)
    message = parse_message(pb.Manifest, unframe(data[position:]))
    message.version = version
    message.timestamp.FromNanoseconds(now_nanos)
    message.transaction_file = transaction_file
    message.config.update(config)
    message.ClearField("transaction_section")
    raw = message.SerializeToString()
    return data[:position] + struct.pack("<I", len(raw)) + raw + data[-FOOTER_BYTES:]


def encode_restore_transaction(*, read_version: int, transaction_id: str, restored: int) -> bytes:
    """Lance's record of a commit that restores a version: every other commit conflicts with it."""
    message = pb.Transaction(read_version=read_version, uuid=transaction_id)
    message.restore.version = restored
    return message.SerializeToString()
