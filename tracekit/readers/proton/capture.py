"""Build declared tables from a profile of Proton, which is read when it is opened."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tracekit import schemas
from tracekit.errors import CorruptTraceError
from tracekit.readers.common.budget import OBJECT_ROW_BYTES, Budget
from tracekit.readers.common.damage import Damage
from tracekit.registry.interface import Capture

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracekit.registry.source import Source

TOTALS, DEVICES = "activity_totals", "devices"
_COPY_AGAIN = "copy the file again from its source, or record the profile again with proton.start(…)"
_NOUN = "functions and scopes"
_MAX_PATH_LENGTH, _MAX_DEPTH, _MAX_INT = 1 << 14, 1 << 10, (1 << 63) - 1
_TIME, _COUNT, _BYTES, _DEVICE = "time (ns)", "count", "bytes", "device_id"
_FLOPS = re.compile(r"flops(\d{0,3})")
_ROOT = "ROOT"
_FOLDERS = re.compile(r"(?:/|[A-Za-z]:[\\/])[^@]{0,4096}[/\\](?=[^/\\@]{1,255}:\d{1,9}@)")
"""The folders of the file in the name of a function of Python, such as ``/home/user/train.py:12@step``."""


def read_profile(source: Source) -> ProtonCapture:
    """Read a profile.

    Raises:
        CorruptTraceError: The file is not valid JSON, or not the tree of a profile.
        TracekitError: The file cannot be read, or changed while it was read.
    """
    with source.open() as file:
        try:
            budget = Budget(file.size)
            document = json.loads(file.read(0, file.size), parse_constant=_reject_constant)
            return ProtonCapture(document, budget)
        except (ValueError, RecursionError, Damage) as e:
            file.check_unchanged()
            what = "it is nested too deeply" if isinstance(e, RecursionError) else str(e).partition("\n")[0]
            raise CorruptTraceError(f"cannot be read: {what}", path=source.path, hint=_COPY_AGAIN) from e


class ProtonCapture(Capture):
    """The tables of a profile that has been read."""

    def __init__(self, document: object, budget: Budget) -> None:
        """Build all tables.

        Raises:
            Damage: The document is not the tree of a profile.
        """
        if not isinstance(document, list) or not document or not isinstance(document[0], dict):
            raise Damage("expected a list with the tree and the devices")
        self._undecoded: Counter[str] = Counter()
        totals = list(self._build_totals(document[0], budget))
        devices = [each for described in document[1:] for each in _list_devices(described)]
        info: list[dict[str, Any]] = [
            {"name": "tool", "value": "Proton"},
            {"name": "device_vendors", "value": _find_vendor(document[1:])},
        ]
        rows = {TOTALS: totals, DEVICES: devices, "capture_info": [row for row in info if row["value"]]}
        self._tables = {name: _build_table(name, each) for name, each in rows.items()}

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
        return +self._undecoded

    def _build_totals(self, tree: Mapping[str, Any], budget: Budget) -> Iterator[dict[str, Any]]:
        """Yield one row per function, scope and activity, those that contain others first."""
        remaining: list[tuple[Any, int | None, int, str]] = [(tree, None, 0, "")]
        number = 0
        while remaining:
            node, parent, depth, path = remaining.pop()
            budget.reserve(1, OBJECT_ROW_BYTES, _NOUN)
            name, children = _read_node(node)
            is_root = node is tree and name == _ROOT and not any(_list_numbers(node.get("metrics")))
            if not is_root:
                number += 1
                path = f"{path}/{name}" if path else name
                if len(path) > _MAX_PATH_LENGTH or depth > _MAX_DEPTH:
                    raise Damage(
                        f"a call path has more than {_MAX_PATH_LENGTH:,} characters or {_MAX_DEPTH:,} functions"
                    )
                budget.reserve(len(path), 1, "characters of call paths")
                yield {
                    "activity_total_id": number,
                    "parent_id": parent,
                    "depth": depth,
                    "path": path,
                    "name": name,
                    **self._read_metrics(node.get("metrics")),
                }
            place = (None, 0, "") if is_root else (number, depth + 1, path)
            remaining += [(child, *place) for child in reversed(children)]

    def _read_metrics(self, metrics: object) -> dict[str, Any]:
        """Return the declared values of a node. Other values are counted."""
        if not isinstance(metrics, dict):
            raise Damage("the metrics of a function are not an object")
        flops = {name: _read_number(metrics[name], name) for name in metrics if _FLOPS.fullmatch(name)}
        known = {_TIME, _COUNT, _BYTES, _DEVICE, "device_type", *flops}
        self._undecoded["values of other metrics"] += sum(name not in known for name in metrics)
        widths = {_FLOPS.fullmatch(name)[1] for name in flops}  # type: ignore[index]
        width = widths.pop() if len(widths) == 1 else ""
        time, count, size = (_read_integer(metrics.get(name), name) for name in (_TIME, _COUNT, _BYTES))
        device = metrics.get(_DEVICE)
        return {
            "kind": "activity" if time is not None and device is not None else "scope",
            "device_id": _read_integer(int(str(device)) if str(device).isdecimal() else None, _DEVICE, (1 << 31) - 1),
            "count": count,
            "total_ns": time,
            "flops": sum(flops.values()) if flops else None,
            "flop_bits": int(width) if width else None,
            "bytes": size,
        }


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _read_node(node: object) -> tuple[str, list[Any]]:
    """Return the name and the children of a node of the tree."""
    if isinstance(node, dict):
        frame, children = node.get("frame"), node.get("children", [])
        if isinstance(frame, dict) and isinstance(frame.get("name"), str) and isinstance(children, list):
            return _FOLDERS.sub("", frame["name"], count=1), children
    raise Damage("a function in the tree has no name or no children")


def _list_numbers(metrics: object) -> list[int | float]:
    """Return the values of metrics that are numbers."""
    return [v for v in metrics.values() if isinstance(v, int | float)] if isinstance(metrics, dict) else []


def _read_number(value: object, name: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1e300:  # noqa: PLR2004
        return float(value)
    raise Damage(f"the value of {name} is not a number")


def _read_integer(value: object, name: str, largest: int = _MAX_INT) -> int | None:
    """Return an integer, which may be stored as a floating-point number."""
    if value is None:
        return None
    number = value if isinstance(value, int) and not isinstance(value, bool) else round(_read_number(value, name))
    if not 0 <= number <= largest:
        raise Damage(f"the value of {name} is not a number from 0 to {largest:,}")
    return number


def _list_devices(described: object) -> Iterator[dict[str, Any]]:
    """Yield the GPUs. The rates of memory and of clocks are in kHz, and the width of the bus in bits."""
    for vendor, devices in described.items() if isinstance(described, dict) else ():
        for number, values in devices.items() if isinstance(devices, dict) else ():
            if not isinstance(values, dict) or not str(number).isdecimal():
                raise Damage("the description of a GPU is not valid")
            arch = str(values.get("arch", ""))[:32]
            clock, memory, width, units = (
                _read_integer(values.get(name), name, 1 << 31)
                for name in ("clock_rate", "memory_clock_rate", "bus_width", "num_sms")
            )
            is_cuda = vendor == "CUDA" and arch.isdecimal()
            yield {
                "device_id": _read_integer(int(number), _DEVICE, (1 << 31) - 1),
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
