"""Make strings from files safe for terminals, JSON and spreadsheets.

A name in a capture may contain escape sequences that move the cursor or set the window title, characters that reverse
the direction of text, or a spreadsheet formula. The functions of this module prevent these from taking effect where the
name is displayed.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

_ROUNDED_TO_ONE, _LARGE_NUMBER = 0.9995, 999.5

_UNSAFE = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories that are escaped: controls, format characters, surrogates, and line and paragraph separators."""
UNDECODED = "".join(map(chr, range(0xDC80, 0xDD00)))
"""The characters with which Python represents bytes in a path that are not valid UTF-8."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_SHORT_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
_NOT_ASCII_PRINTABLE = re.compile(r"[^ -~]")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_UNITS = (("ns", 1), ("us", 1_000), ("µs", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000))
_MAX_NS = 1 << 62
MAX_NAME_LENGTH = 80
"""Maximum number of characters of a name of a capture in a sentence."""
_MAX_X_ESCAPE, _MAX_U_ESCAPE = 1 << 8, 1 << 16


def to_printable(text: str, *, keep: str = "") -> str:
    r"""Return text whose control characters are escaped, so that it cannot control a terminal: ESC becomes ``\x1b``.

    Args:
        text: Any string.
        keep: Control characters that are not escaped, such as line ends.
    """
    if text.isascii() and text.isprintable():
        return text
    return _NOT_ASCII_PRINTABLE.sub(
        lambda match: match[0] if match[0] in keep else _escape_for_terminal(match[0]), text
    )


def shorten_middle(text: str, max_length: int = MAX_NAME_LENGTH) -> str:
    """Return a string with at most ``max_length`` characters. The middle of a longer string is replaced by "…"."""
    if len(text) <= max_length:
        return text
    tail = (max_length - 1) // 3
    return f"{text[: max_length - 1 - tail]}…{text[len(text) - tail :]}"


def shorten_end(text: str, max_length: int) -> str:
    """Return a string with at most ``max_length`` characters. The end of a longer string is replaced by "…"."""
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def replace_surrogates(text: str) -> str:
    """Return text in which surrogates are replaced with U+FFFD.

    Python represents invalid bytes of arguments and paths as surrogates, which polars and Arrow reject. Readers also
    replace invalid bytes of names in captures with U+FFFD.
    """
    return _SURROGATE.sub("\ufffd", text)


def escape_json_text(text: str) -> str:
    """Return JSON text with escaped control characters. The value that the text represents does not change."""
    return _NOT_ASCII_PRINTABLE.sub(lambda match: match[0] if match[0] == "\n" else _escape_for_json(match[0]), text)


def is_formula(cell: str) -> bool:
    """Return whether a spreadsheet would interpret the text of a cell as a formula."""
    return cell.startswith(_FORMULA)


def escape_formula(text: str) -> str:
    """Return the text of a cell, preceded by an apostrophe if a spreadsheet would interpret the text as a formula."""
    return f"'{text}" if is_formula(text) else text


def escape_formulas(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame with apostrophes before column names and strings that spreadsheets would interpret as formulas."""
    import polars as pl

    def escape_column_expr(name: str) -> pl.Expr:
        text = pl.col(name).cast(pl.String)
        looks_like_formula = pl.any_horizontal(text.str.starts_with(sign) for sign in _FORMULA)
        return pl.when(looks_like_formula).then(pl.concat_str(pl.lit("'"), text)).otherwise(text).alias(name)

    string_columns = [name for name, kind in frame.schema.items() if kind in (pl.String, pl.Categorical, pl.Enum)]
    return frame.with_columns(map(escape_column_expr, string_columns)).rename(
        {name: escape_formula(name) for name in frame.columns}
    )


@functools.lru_cache(maxsize=1 << 12)
def _escape_for_terminal(character: str) -> str:
    """Return a character, escaped as in Python source code if it is unsafe."""
    if unicodedata.category(character) not in _UNSAFE:
        return character
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    code = ord(character)
    return f"\\x{code:02x}" if code < _MAX_X_ESCAPE else f"\\u{code:04x}" if code < _MAX_U_ESCAPE else f"\\U{code:08x}"


@functools.lru_cache(maxsize=1 << 12)
def _escape_for_json(character: str) -> str:
    """Return a character, escaped as in JSON if it is unsafe."""
    if unicodedata.category(character) not in _UNSAFE:
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def parse_nanoseconds(text: str) -> int:
    """Parse a number of nanoseconds, or a number with a time unit such as ``1.5s``, into nanoseconds.

    Raises:
        ValueError: The text is not a time, or its absolute value is 2^62 ns (146 years) or more.
    """
    from decimal import Decimal, InvalidOperation

    unit, factor = next(((u, f) for u, f in _UNITS if text.endswith(u)), ("", 1))
    try:
        value = Decimal(text.removesuffix(unit).strip()) * factor
    except InvalidOperation:
        raise ValueError(text) from None
    if not (value.is_finite() and abs(value) < _MAX_NS):
        raise ValueError(text)
    return int(value)


def parse_byte_count(text: str) -> int:
    """Parse a size such as ``500MB`` or ``64KiB``, and return it in bytes.

    Raises:
        ValueError: The text is not a size.
    """
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?) ?([KMGT]?)(i?)B?", text, re.IGNORECASE)
    if match is None:
        raise ValueError(text)
    number, prefix, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " KMGT".index(prefix.upper() or " "))


def format_duration(time_ns: float) -> str:
    """Format a duration in ns with three significant digits and a suitable unit, such as ``1.25 ms``."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if time_ns >= size * _ROUNDED_TO_ONE:
            return f"{format_number(time_ns / size)} {unit}"
    return f"{time_ns:.0f} ns"


def format_number(number: float) -> str:
    """Format a number with three significant digits, or all digits before the decimal point, such as ``1,234``."""
    return f"{number:.3g}" if abs(number) < _LARGE_NUMBER else f"{number:,.0f}"
