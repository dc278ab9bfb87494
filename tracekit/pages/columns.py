"""Write the titles of columns, their units and their explanations, in one style for all pages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from tracekit.pages.values import BYTES, ID, NANOSECONDS, PERCENT, POINT
from tracekit.schemas import OTHER_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.schemas import Column

_UNIT = re.compile(r" \(([^()]+)\)$")
_SUFFIXES = {"_ns": NANOSECONDS, "_bytes": BYTES, "_percent": PERCENT}
_SHOWN_UNITS = (NANOSECONDS, POINT, BYTES, PERCENT, ID, "")
"""Units that are not part of a title, because the values contain them or have none."""
_POINT = re.compile(r"(?:^| )(?:start|end|allocated|freed|peak time|timestamp)(?: time)?$")
_CLOCK_TIME = re.compile(r"\butc\b|^wall time$")
_COUNT = re.compile(r"(\w+) count\b", re.IGNORECASE)
_RATE = re.compile(r" (?:gb|bytes) per s$| ppm$| hz$")
_ABBREVIATIONS = (
    *("ID", "GPU", "GPUs", "CPU", "CPUs", "API", "SM", "NVTX", "UTC", "CUDA", "MPI", "DRAM", "L1", "L2", "UUID"),
    *("OSRT", "JIT", "NCCL", "PID", "TID", "GUID", "FLOP", "TC", "SQL", "UCX", "NIC", "LID", "IP", "DMA", "DXG", "KHR"),
    *("WDDM", "DX12", "NVAPI", "OpenACC", "OpenMP", "Tensor"),
)
_WORDS = {word.lower(): word for word in _ABBREVIATIONS} | {
    "avg": "mean",
    "avg.": "mean",
    "med": "median",
    "min": "minimum",
    "max": "maximum",
    "std": "standard deviation",
    "stddev": "standard deviation",
    "dur": "duration",
    "num": "",
    "no.": "",
    "#": "",
    "is": "",
    "lvl": "level",
    "inst": "instances",
    "kern": "kernel",
    "proj": "projected",
    "orig": "original",
    "src": "source",
    "dst": "destination",
    "io": "I/O",
    "core": "Core",
    "cores": "Cores",
}
"""How words of names are written in titles. All other words are written in lowercase."""


class ColumnText(NamedTuple):
    """What a page says about a column.

    Attributes:
        name: Name of the column, as in Python and SQL.
        title: Title, which contains the unit only if the values do not.
        unit: Unit of the values, as in ``pages.values``, or "".
        doc: What the values are, or "".
        formula: How they are computed, or "".
    """

    name: str
    title: str
    unit: str = ""
    doc: str = ""
    formula: str = ""


def describe_columns(names: Iterable[str], declared: Iterable[Column] = ()) -> list[ColumnText]:
    """Return what a page says about columns.

    Args:
        names: Names of the columns.
        declared: Declarations that may include these columns.
    """
    by_name = {column.name: column for column in declared}
    return [describe_column(name, by_name.get(name) or by_name.get(OTHER_COLUMNS)) for name in names]


def describe_column(name: str, declared: Column | None = None) -> ColumnText:
    """Return what a page says about a column.

    Args:
        name: Name of the column.
        declared: Declaration of the column. None for a column that is not declared.
    """
    base, unit = _split_unit(name)
    if declared is not None and declared.unit is not None:
        unit = declared.unit
    words = base.replace("_", " ").lower()
    if unit == NANOSECONDS and _POINT.search(words):
        unit = POINT
    if (unit == NANOSECONDS and _CLOCK_TIME.search(words)) or (not unit and (words == "id" or words.endswith(" id"))):
        unit = ID
    title = (declared.title if declared is not None else None) or write_title(base)
    shown_unit = "" if unit in _SHOWN_UNITS or title.endswith(unit) else f" ({unit})"
    doc, formula = ("", "") if declared is None else (declared.doc, declared.formula or "")
    return ColumnText(name, title + shown_unit, unit, doc, formula)


def write_title(name: str) -> str:
    """Return the title of a column without its unit: ``gpu_time`` and ``GPU Time`` become ``GPU time``."""
    tokens = _COUNT.sub(_write_plural, _RATE.sub("", name.replace("_", " "))).split()
    words = [_write_word(token) for token in tokens]
    text = " ".join(filter(None, words)) or name
    return text[:1].upper() + text[1:]


def _write_plural(count: re.Match[str]) -> str:
    word = count[1]
    if word.endswith("y"):
        return f"{word[:-1]}ies"
    return word if word.endswith("s") else f"{word}s"


def _write_word(token: str) -> str:
    known = _WORDS.get(token.lower())
    if known is not None:
        return known
    if len(token) == 1:
        return token.upper()
    return token.lower() if token.istitle() and token.replace("-", "").isalpha() else token


def _split_unit(name: str) -> tuple[str, str]:
    """Return the name of a column without its unit, and the unit or ""."""
    if match := _UNIT.search(name):
        return name[: match.start()], match[1]
    for suffix, unit in _SUFFIXES.items():
        if name.endswith(suffix) and len(name) > len(suffix):
            return name.removesuffix(suffix), unit
    return name, ""
