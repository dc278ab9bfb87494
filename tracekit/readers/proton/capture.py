"""Build declared tables from a profile of Proton, which is read when it is opened."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tracekit import schemas
from tracekit.errors import CorruptTraceError
from tracekit.readers.common.budget import Budget
from tracekit.readers.common.damage import Damage
from tracekit.readers.proton.tree import DEVICE, MAX_DEVICE, TreeBuilder, TreeRow, read_integer
from tracekit.registry.interface import Capture

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracekit.registry.source import Source

TOTALS, DEVICES = "activity_totals", "devices"
_COPY_AGAIN = "copy the file again from its source, or record the profile again with proton.start(…)"


def read_profile(source: Source) -> ProtonCapture:
    """Read a profile.

    Raises:
        CorruptTraceError: The file is not valid JSON, or not the tree of a profile.
        TracekitError: The file cannot be read, or changed while it was read.
    """
    with source.open() as file:
        try:
            text, builder = file.read(0, file.size).decode("utf-8-sig", "replace"), TreeBuilder()
            document = json.loads(text, parse_constant=_reject_constant, object_hook=builder.add_object)
            del text
            return ProtonCapture(document, builder, Budget(file.size))
        except (ValueError, RecursionError, Damage) as e:
            file.check_unchanged()
            what = "it is nested too deeply" if isinstance(e, RecursionError) else str(e).partition("\n")[0]
            raise CorruptTraceError(f"cannot be read: {what}", path=source.path, hint=_COPY_AGAIN) from e


class ProtonCapture(Capture):
    """The tables of a profile that has been read."""

    def __init__(self, document: object, builder: TreeBuilder, budget: Budget) -> None:
        """Build all tables.

        Args:
            document: The parsed JSON, in which the functions and scopes are rows of the builder.
            builder: The builder of the functions and scopes.
            budget: The memory budget.

        Raises:
            Damage: The document is not the tree of a profile.
        """
        if not isinstance(document, list) or not document or not isinstance(document[0], TreeRow):
            raise Damage("expected a list with the tree and the devices")
        if any(isinstance(each, TreeRow) for each in document[1:]):
            raise Damage("the file has several trees, but tracekit reads one")
        self._undecoded = {"values of other metrics": builder.other_metrics} if builder.other_metrics else {}
        devices = [each for described in document[1:] for each in _list_devices(described)]
        info: list[dict[str, Any]] = [
            {"name": "tool", "value": "Proton"},
            {"name": "device_vendors", "value": _find_vendor(document[1:])},
        ]
        rows = {DEVICES: devices, "capture_info": [row for row in info if row["value"]]}
        totals = builder.build_totals(document[0], budget)
        count, declared = len(totals["depth"]), schemas.arrow_schema(schemas.table(TOTALS))
        arrays = [totals[f.name].cast(f.type) if f.name in totals else pa.nulls(count, f.type) for f in declared]
        self._tables = {TOTALS: pa.table(arrays, declared)}
        self._tables |= {name: _build_table(name, each) for name, each in rows.items()}

    def names(self) -> list[str]:
        """Return the names of the declared tables that may have rows."""
        return list(self._tables)

    def count(self, name: str) -> int:
        """Return the number of rows of a table."""
        return int(self._tables[name].num_rows)

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return the requested columns of a table."""
        return self._tables[name].select(columns)

    def count_undecoded(self) -> Mapping[str, int]:
        """Return the number of values that are in no table."""
        return self._undecoded


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _list_devices(described: object) -> Iterator[dict[str, Any]]:
    """Yield the GPUs. The rates of memory and of clocks are in kHz, and the width of the bus in bits."""
    for vendor, devices in described.items() if isinstance(described, dict) else ():
        for number, values in devices.items() if isinstance(devices, dict) else ():
            if not isinstance(values, dict) or not str(number).isdecimal():
                raise Damage("the description of a GPU is not valid")
            arch = str(values.get("arch", ""))[:32]
            clock, memory, width, units = (
                None if values.get(name) is None else read_integer(values[name], name, 1 << 31)
                for name in ("clock_rate", "memory_clock_rate", "bus_width", "num_sms")
            )
            is_cuda = vendor == "CUDA" and arch.isdecimal()
            yield {
                "device_id": read_integer(int(number), DEVICE, MAX_DEVICE),
                "chip": None if is_cuda else arch or None,
                "compute_major": int(arch) // 10 if is_cuda else None,
                "compute_minor": int(arch) % 10 if is_cuda else None,
                "sm_count": units,
                "clock_rate_hz": None if clock is None else clock * 1000,
                "memory_bandwidth_bytes_per_s": 2000 * memory * width // 8 if is_cuda and memory and width else None,
            }


def _find_vendor(described: Sequence[object]) -> str | None:
    """Return the maker of the GPUs."""
    names = {name for each in described if isinstance(each, dict) for name in each}
    vendors = {"CUDA": "NVIDIA", "HIP": "AMD"}
    return ", ".join(vendors[name] for name in sorted(names) if name in vendors) or None


def _build_table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Return a table of rows. Values that all rows lack are null.

    Raises:
        Damage: A key is repeated, or a number does not fit.
    """
    table = schemas.table(name)
    key = table.key[0]
    unique = list({row[key]: row for row in reversed(rows)}.values())[::-1]
    fields = list(schemas.arrow_schema(table))
    try:
        return pa.table(
            [_build_column(field.type, [row.get(field.name) for row in unique]) for field in fields],
            schemas.arrow_schema(table),
        )
    except (pa.ArrowInvalid, OverflowError, UnicodeError) as e:
        raise Damage(str(e).partition("\n")[0]) from e


def _build_column(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, pa.string()).dictionary_encode().cast(kind)
    return pa.array(values, kind)
