"""Valid bytes, damaged: by chance, and by someone who knows the format."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf.message import Message
from hypothesis import strategies as st

HOSTILE_TEXTS = (
    "..",
    "../../etc",
    "/etc/passwd",
    "0a1b2c3d_gen_1/../../x",
    "%2e%2e%2f%2e%2e",
    "0a1b2c3d_gen_1\n",
    "0a1b2c3d_gen_" + "1" * 5000,
    "0a1b2c3d_gen_\u0661",
    "C:\\x",
    "\0",
    "",
)
HOSTILE_NUMBERS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
# A varint without an end, one of eleven bytes, and lengths of 2 GiB and 2**64-1.
HOSTILE_PIECES = (
    b"\xff" * 16,
    b"\x80" * 10 + b"\x01",
    b"\x0a\xff\xff\xff\xff\x07",
    b"\x0a" + b"\xff" * 9 + b"\x01",
    b"\x0b" * 200,  # groups that are opened and never closed
    b"\x0a\x7e" * 60,  # messages in messages
)


@st.composite
def damaged(draw: st.DrawFn, *samples: bytes) -> bytes:
    """One of the samples with one to four wounds; now and then bytes of no sample at all."""
    if draw(st.integers(0, 19)) == 0:
        return draw(st.binary(max_size=200))
    found = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(found) - 1)))
        kind = draw(
            st.sampled_from(["flip", "cut", "end", "put", "double", "zero", "huge", "splice"])
        )
        if kind == "flip" and found:
            found[at] ^= draw(st.integers(1, 255))
        elif kind == "cut":
            del found[at : at + draw(st.integers(1, 64))]
        elif kind == "end":
            del found[at:]
        elif kind == "put":
            piece = draw(st.sampled_from(HOSTILE_PIECES) | st.binary(min_size=1, max_size=16))
            found[at:at] = piece
        elif kind == "double":
            found[at:at] = found[at : at + draw(st.integers(1, 64))]
        elif kind == "splice":
            other = draw(st.sampled_from(samples))
            found[at:] = other[draw(st.integers(0, len(other))) :]
        else:
            size = draw(st.sampled_from([1, 2, 4, 8]))
            found[at : at + size] = (b"\0" if kind == "zero" else b"\xff") * size
    return bytes(found)


@st.composite
def forged(draw: st.DrawFn, kind: type[Message], *samples: bytes) -> bytes:
    """A well-formed message whose values nobody honest would write."""
    message = kind.FromString(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 3))):
        _forge(draw, message)
    data = message.SerializeToString()
    if draw(st.integers(0, 9)) == 0:  # every field twice: singular ones win last, lists grow
        data += data
    return data


def _forge(draw: st.DrawFn, message: Message) -> None:
    field = draw(st.sampled_from(list(message.DESCRIPTOR.fields)))
    if field.message_type is not None:
        if field.message_type.GetOptions().map_entry:
            return
        children = getattr(message, field.name)
        if field.is_repeated:
            if not len(children) or draw(st.booleans()):
                children.add()
                if len(children) > 1 and draw(st.booleans()):
                    children[-1].CopyFrom(children[0])
            _forge(draw, children[draw(st.integers(0, len(children) - 1))])
        else:
            _forge(draw, children)
        return
    value = _value(draw, field.cpp_type, field)
    if field.is_repeated:
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)


def _value(draw: st.DrawFn, kind: int, field: Any) -> Any:
    if kind == field.CPPTYPE_STRING and field.type == field.TYPE_BYTES:
        return draw(st.sampled_from([b"", b"\0" * 15, b"\0" * 16, b"\xff" * 17, b"x" * 4096]))
    if kind == field.CPPTYPE_STRING:
        return draw(st.sampled_from(HOSTILE_TEXTS) | st.text(max_size=10))
    if kind == field.CPPTYPE_BOOL:
        return draw(st.booleans())
    bits = 32 if kind in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32, field.CPPTYPE_ENUM) else 64
    number = draw(st.sampled_from(HOSTILE_NUMBERS)) % 2**bits
    if kind == field.CPPTYPE_ENUM:
        return number % 3
    signed = kind in (field.CPPTYPE_INT32, field.CPPTYPE_INT64)
    return number - 2**bits if signed and number >= 2 ** (bits - 1) else number


ODD_VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=10),
    st.sampled_from(HOSTILE_TEXTS),
    st.sampled_from(HOSTILE_NUMBERS),
    st.just("9" * 5000),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
)


@st.composite
def odd_json(draw: st.DrawFn, document: Any) -> bytes:
    """The document with odd values, keys that are gone, or not a document at all."""
    kind = draw(st.sampled_from(["values"] * 6 + ["other", "deep", "digits", "bytes"]))
    if kind == "other":
        return json.dumps(draw(ODD_VALUES)).encode()
    if kind == "deep":
        opened = draw(st.sampled_from([b"[", b'{"a":', b'{"tables":[']))
        return opened * 100_000
    if kind == "digits":  # int() refuses more than 4300 of them with an error of its own
        return b'{"token": ' + b"9" * 5000 + b"}"
    text = json.dumps(document).encode()
    if kind == "bytes":
        return draw(damaged(text))
    found = json.loads(text)
    for _ in range(draw(st.integers(1, 3))):
        found = _odd(draw, found)
    return json.dumps(found).encode()


def _odd(draw: st.DrawFn, value: Any) -> Any:
    """The value with one odd thing somewhere in it."""
    keys: list[Any] = sorted(value) if isinstance(value, dict) else []
    if isinstance(value, list):
        keys = list(range(len(value)))
    if not keys or draw(st.integers(0, 5)) == 0:
        return draw(ODD_VALUES)
    key = draw(st.sampled_from(keys))
    kind = draw(st.sampled_from(["value", "value", "value", "gone", "more"]))
    if kind == "gone":
        del value[key]
    elif kind == "more" and isinstance(value, dict):
        value[draw(st.text(max_size=5))] = draw(ODD_VALUES)
    else:
        value[key] = _odd(draw, value[key])
    return value
