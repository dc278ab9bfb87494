"""Text from files made safe for terminals, JSON and spreadsheets.

A name in a capture may hold anything: escape sequences that move the cursor or set the title, characters that reverse
the order of what follows, or a formula. Nothing of that may take effect where it is shown.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

_UNSAFE = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories: controls, format characters such as bidirectional overrides, surrogates, line separators."""
UNDECODED = "".join(map(chr, range(0xDC80, 0xDD00)))
"""What stands in a path for the bytes that are not UTF-8."""
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
_SPECIAL = re.compile(r"[^ -~]")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_BYTE, _BASIC = 1 << 8, 1 << 16


def printable(text: str, *, keep: str = "") -> str:
    r"""Return text with everything that a terminal would act on spelled out: an escape character becomes ``\x1b``.

    Args:
        text: Any text.
        keep: Characters that stay, such as a line end.
    """
    return _SPECIAL.sub(lambda match: match[0] if match[0] in keep else _spelled(match[0]), text)


def json_text(text: str) -> str:
    """Return a JSON text with the same value in which no character inside a string acts on a terminal."""
    return _SPECIAL.sub(lambda match: match[0] if match[0] == "\n" else _escaped(match[0]), text)


def is_formula(cell: str) -> bool:
    """Return whether a spreadsheet would take a cell of text for a formula."""
    return cell.startswith(_FORMULA)


def cell(text: str) -> str:
    """Return a cell of text that a spreadsheet shows as it is: one that looks like a formula gets an apostrophe."""
    return f"'{text}" if is_formula(text) else text


def without_formulas(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame whose titles and texts a spreadsheet shows as they are: n rows in, n rows out."""
    import polars as pl

    def guarded(name: str) -> pl.Expr:
        text = pl.col(name).cast(pl.String)
        looks_like_formula = pl.any_horizontal(text.str.starts_with(sign) for sign in _FORMULA)
        return pl.when(looks_like_formula).then(pl.concat_str(pl.lit("'"), text)).otherwise(text).alias(name)

    texts = [name for name, kind in frame.schema.items() if kind in (pl.String, pl.Categorical, pl.Enum)]
    return frame.with_columns(map(guarded, texts)).rename({name: cell(name) for name in frame.columns})


@functools.lru_cache(maxsize=1 << 12)
def _spelled(character: str) -> str:
    if unicodedata.category(character) not in _UNSAFE:
        return character
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    return f"\\x{code:02x}" if code < _BYTE else f"\\u{code:04x}" if code < _BASIC else f"\\U{code:08x}"


@functools.lru_cache(maxsize=1 << 12)
def _escaped(character: str) -> str:
    if unicodedata.category(character) not in _UNSAFE:
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
