"""Numbers as a column's floats: exactly, or refused. Pure.

A number with a fraction is hardly ever a float: 0.1 is none. It is taken for one if the float, when
it is written with as many digits, is that number again. So 9007199254740993 is no double, and no
number is that is out of range.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# Of so many digits, each number is some float's; and of a double so many characters.
_SURE_CHARACTERS = 15
_WORDS = ["nan", "inf", "-inf", "infinity", "-infinity", "+inf", "+infinity", "-nan", "+nan"]
_ZERO = r"^[-+]?0*\.?0*([eE][-+]?[0-9]+)?$"
_NORMAL_MIN = np.finfo(np.float64).tiny
_EXACT_BITS = {16: 11, 32: 24, 64: 53}


def read_number(text: str) -> float | Decimal:
    """A number of JSON with a fraction or an exponent; a Decimal where no double is that number."""
    number = float(text)
    shown = repr(number)
    if shown == text:
        return number
    exact = Decimal(text)
    return number if Decimal(shown) == exact else exact


def read_floats(texts: pa.Array, kind: pa.DataType, *, rounds: bool) -> pa.Array:
    """Texts of numbers as floats. Raises ValueError for one that is none."""
    numbers = texts.cast(pa.float64())
    is_word = pc.is_in(pc.utf8_lower(texts), pa.array(_WORDS, texts.type))
    _refuse(pc.and_not(pc.is_inf(numbers), is_word), texts, numbers)
    found = narrow(numbers, kind, rounds=rounds, is_written=True)
    if not rounds:
        is_zero = pc.match_substring_regex(texts, _ZERO)
        is_short = pc.and_(
            pc.less_equal(pc.binary_length(texts), _SURE_CHARACTERS),
            pc.greater_equal(pc.abs(numbers), _NORMAL_MIN),
        )
        is_sure = pc.or_(pc.or_(is_word, is_zero), is_short)
        if pa.types.is_float64(kind):
            is_sure = pc.or_(is_sure, pc.equal(numbers.cast(texts.type), texts))
        _check(found.cast(pa.float64()), texts, is_sure)
    return found


def narrow(numbers: pa.Array, kind: pa.DataType, *, rounds: bool, is_written: bool) -> pa.Array:
    """Floats as those of another size. Raises ValueError for one that is none.

    Numbers that were `written`, as text, need to be those only that they are written as.
    """
    found = numbers.cast(kind, safe=False)
    wide = found.cast(pa.float64())
    numbers = numbers.cast(pa.float64())
    _refuse(pc.and_(pc.is_inf(wide), pc.is_finite(numbers)), numbers, wide)
    if rounds or numbers.type == kind:
        return found
    is_same = pc.or_(pc.equal(numbers, wide), pc.is_nan(numbers))
    if not is_written:
        _refuse(pc.invert(is_same), numbers, wide)
    elif pa.types.is_float32(kind):
        # The shortest text that is this float's, as a double.
        shown = found.cast(pa.string()).cast(pa.float64())
        _check(wide, numbers, pc.or_(is_same, pc.equal(shown, numbers)))
    else:
        _check(wide, numbers, is_same)
    return found


def read_integers(numbers: pa.Array, kind: pa.DataType, *, rounds: bool) -> pa.Array:
    """Integers as floats. Raises ValueError for one that is none."""
    found = numbers.cast(kind, safe=False)
    wide = found.cast(pa.float64())
    most = 2 ** _EXACT_BITS[kind.bit_width]
    small = pc.and_(pc.less(wide, most), pc.greater(wide, -most))
    _refuse(pc.is_inf(wide), numbers, wide)
    if not rounds:
        _check(wide, numbers, small, lambda number, found: int(found) == number)
    return found


def is_written_as(number: object, found: float) -> bool:
    """Whether the float, written with as many digits as the number, is that number."""
    shown = str(number)
    if shown == repr(found):
        return True
    exact = Decimal(shown)
    digits = exact.as_tuple().digits
    # Zeros at the end may be there only to fill up.
    counts = (len(digits), len("".join(map(str, digits)).strip("0")) or 1)
    return any(Decimal(f"{found:.{count - 1}e}") == exact for count in counts)


def _check(
    found: pa.Array,
    given: pa.Array,
    is_sure: pa.Array,
    is_same: Callable[[object, float], bool] = is_written_as,
) -> None:
    for place in pc.indices_nonzero(pc.invert(is_sure)).to_pylist():
        if not is_same(given[place].as_py(), found[place].as_py()):
            raise _explain(given[place].as_py(), found[place].as_py())


def _refuse(wrong: pa.Array, given: pa.Array, found: pa.Array) -> None:
    if pc.any(wrong).as_py():
        place = pc.index(wrong, True).as_py()
        raise _explain(given[place].as_py(), found[place].as_py())


def _explain(given: object, found: float) -> ValueError:
    if np.isinf(found):
        return ValueError(f"{given} is out of range")
    return ValueError(f"the nearest to {given} is {found!r}, which --convert=round takes")
