"""Which types hold every value of which others. Pure.

Types are Arrow's own text for them.
"""

from __future__ import annotations

import re

_WHOLE = re.compile(r"(u?)int(8|16|32|64)")
_DECIMAL = re.compile(r"decimal(128|256)\((\d+), (-?\d+)\)")
_UNIT = re.compile(r"(timestamp|duration|time(?:32|64))\[(s|ms|us|ns)(.*)\]")
_VECTOR = re.compile(r"fixed_size_list<(.*)>(\[\d+\])")
_ITEM = re.compile(r"\w+: (\w+)( not null)?")
# By their bits, whole numbers up to which a float holds each one of.
_FLOATS = {"halffloat": 11, "float": 24, "double": 53}
_UNITS = ("s", "ms", "us", "ns")
_LARGER = {("string", "large_string"), ("binary", "large_binary"), ("date32[day]", "date64[ms]")}


def is_exact(old: str, new: str) -> bool:
    """Whether each value of `old` is one of `new`, so that a cast loses nothing.

    A moment in a finer unit may be out of range; a cast says so. For types without members.
    """
    if old == new or (old, new) in _LARGER:
        return True
    if new in _FLOATS:
        return _bits_of(old) <= _FLOATS[new]
    for pattern, fits in (
        (_WHOLE, _fits_whole),
        (_DECIMAL, _fits_decimal),
        (_UNIT, _fits_unit),
        (_VECTOR, _fits_vector),
    ):
        before, after = pattern.fullmatch(old), pattern.fullmatch(new)
        if before and after:
            return fits(before, after)
    return False


def _bits_of(text: str) -> int:
    """Of a number's type: how many bits a float needs for each of its values."""
    whole = _WHOLE.fullmatch(text)
    if whole is not None:
        return int(whole[2]) - (not whole[1])
    return _FLOATS.get(text, 1_000)


def _fits_whole(old: re.Match[str], new: re.Match[str]) -> bool:
    if old[1] == new[1]:
        return int(old[2]) <= int(new[2])
    return bool(old[1]) and int(old[2]) < int(new[2])


def _fits_decimal(old: re.Match[str], new: re.Match[str]) -> bool:
    width, precision, scale = (int(n) for n in old.groups())
    wider, digits, places = (int(n) for n in new.groups())
    return wider >= width and places >= scale and digits - places >= precision - scale


def _fits_unit(old: re.Match[str], new: re.Match[str]) -> bool:
    same = old[1].rstrip("3264") == new[1].rstrip("3264") and old[3] == new[3]
    return same and _UNITS.index(old[2]) <= _UNITS.index(new[2])


def _fits_vector(old: re.Match[str], new: re.Match[str]) -> bool:
    """Of vectors: as many items, each of a type that fits."""
    before, after = _ITEM.fullmatch(old[1]), _ITEM.fullmatch(new[1])
    if old[2] != new[2] or before is None or after is None:
        return False
    return is_exact(before[1], after[1]) and bool(before[2]) >= bool(after[2])
