"""Our captures of Nsight Compute, read with the standard library only; and files made like them."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "fixtures" / "ncu"
PUSH_POP = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
START_END = "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
RANGES = "Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
FACTORS = {
    "us": ("ns", 3),
    "ms": ("ns", 6),
    "Khz": ("hz", 3),
    "Mhz": ("hz", 6),
    "Ghz": ("hz", 9),
    "Kbyte": ("byte", 3),
    "Mbyte": ("byte", 6),
    "Gbyte": ("byte", 9),
    "Kbyte/block": ("byte/block", 3),
    "Gbyte/s": ("byte/s", 9),
    "Mbyte/s": ("byte/s", 6),
    "Tbyte/s": ("byte/s", 12),
    "%/Kbyte": ("%/byte", 3),
    "sector/ns": ("sector/s", 9),
    "sector/us": ("sector/s", 6),
}
"""Units in our captures that are not base units: the base unit, and the power of ten."""

Row = dict[str, str]


def records(name: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a capture, by the csv module; what stands before the header is left out."""
    lines = (FOLDER / name).read_text("utf-8").splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if line.startswith(('"ID"', '"Process ID"', '"Domain"')))
    header, *rows = csv.reader(lines[first:])
    return header, rows


def rows(name: str) -> list[Row]:
    """Rows of a capture by column; a short row has no value for the last columns."""
    header, found = records(name)
    return [dict(zip(header, row, strict=False)) for row in found]


def number(cell: str, unit: str = "") -> Decimal | None:
    """The exact value of a cell in base units; None where it is no number."""
    try:
        return Decimal(cell.replace(",", "")) * 10 ** FACTORS.get(unit, ("", 0))[1]
    except ArithmeticError:
        return None


def digit(cell: str, unit: str = "") -> Decimal:
    """What the last digit of a cell is worth in base units."""
    decimals = len(cell.partition(".")[2])
    return Decimal(1).scaleb(FACTORS.get(unit, ("", 0))[1] - decimals)


def line(cells: Iterable[str]) -> str:
    """A row as ncu prints it."""
    return ",".join('"' + cell.replace('"', '""') + '"' for cell in cells) + "\n"


def reprinted(name: str, printed: Callable[[str], str], columns: Sequence[str] = ()) -> str:
    """A capture with the cells of some columns printed anew; a row of a metric ends with a bare comma."""
    header, found = records(name)
    chosen = [header.index(c) for c in columns]
    text = line(header)
    for row in found:
        cells = [printed(c) if i in chosen else c for i, c in enumerate(row)]
        short = len(cells) < len(header)
        text += line(cells[:-1]).removesuffix("\n") + ",\n" if short else line(cells)
    return text


IDENTITY = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size"]
IDENTITY += ["Grid Size", "Device", "CC"]
LAUNCH = ["0", "7", "app", "127.0.0.1", "k(int)", "1", "7", "(128, 1, 1)", "(4, 2, 1)", "0", "9.0"]
METRIC = ["Section Name", "Metric Name", "Metric Unit", "Metric Value"]


def details(*metrics: Sequence[str], launch: Sequence[str] = LAUNCH, identity: Sequence[str] = IDENTITY) -> str:
    """A details page with some metrics of one launch."""
    return line([*identity, *METRIC]) + "".join(line([*launch, *m]) for m in metrics)


def raw(units: dict[str, str], *launches: Sequence[str]) -> str:
    """A raw page: metrics with their units, and the cells of some launches."""
    text = line([*IDENTITY, *units]) + line([""] * len(IDENTITY) + list(units.values()))
    return text + "".join(line([str(i), *LAUNCH[1:], *cells]) for i, cells in enumerate(launches))
