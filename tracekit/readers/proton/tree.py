"""Collect the functions and scopes of a profile while its JSON is parsed, so that no Python objects of them remain."""

from __future__ import annotations

import re
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit.readers.common.damage import Damage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.readers.common.budget import Budget

MAX_INT, MAX_DEVICE = (1 << 63) - 1, (1 << 31) - 1
DEVICE = "device_id"
_MAX_PATH_LENGTH, _MAX_DEPTH = 1 << 14, 1 << 10
_PATH_BYTES = 16
"""Bytes of memory to reserve per character of a call path. Real paths have a fifth of the characters of the file."""
_INTEGERS = ("time (ns)", "count", "bytes")
_FLOPS = re.compile(r"flops(\d{0,3})")
_ROOT = "ROOT"
_FILE = re.compile(r"[/\\](?=[^/\\@]{1,255}:\d{1,9}@)")
_FOLDER = re.compile(r"/|[A-Za-z]:[/\\]")
_MISSING = -1


class TreeRow(int):
    """The number of a function or scope, in the order in which the ends of their JSON objects follow."""


class MetricNames(NamedTuple):
    """What the names of the metrics of a function mean.

    Attributes:
        flops: Names of the metrics that are floating-point operations.
        width: Number of bits of their operands, or -1 if it is not stated or differs.
        others: Number of metrics that are not read.
    """

    flops: tuple[str, ...]
    width: int
    others: int


class TreeBuilder:
    """A builder of the table of functions and scopes.

    Attributes:
        other_metrics: Number of values of metrics that are not read.
    """

    def __init__(self) -> None:
        self.other_metrics = 0
        self._names: dict[str, int] = {}
        self._codes, self._first_rows, self._sizes = array("i"), array("q"), array("q")
        self._parents, self._devices, self._widths = array("q"), array("q"), array("i")
        self._integers = tuple(array("q") for _ in _INTEGERS)
        self._flops, self._are_activities = array("d"), array("b")
        self._metric_names: dict[tuple[str, ...], MetricNames] = {}
        self._roots_without_values: set[int] = set()

    def add_object(self, value: dict[str, Any]) -> object:
        """Add an object of the JSON if it is a function or scope, and return its row. Return other objects unchanged.

        Raises:
            Damage: It has no name, children or metrics, or a metric is not valid.
        """
        frame = value.get("frame")
        if frame is None:
            return value
        children, metrics = value.get("children", []), value.get("metrics")
        name = frame.get("name") if isinstance(frame, dict) else None
        if not isinstance(name, str) or not isinstance(children, list):
            raise Damage("a function in the tree has no name or no children")
        if not isinstance(metrics, dict):
            raise Damage("the metrics of a function are not an object")
        row = len(self._codes)
        size = 1
        for child in children:
            if type(child) is not TreeRow:
                raise Damage("a function in the tree has no name or no children")
            self._parents[child] = row
            size += self._sizes[child]
        self._sizes.append(size)
        self._parents.append(_MISSING)
        self._codes.append(self._names.setdefault(name, len(self._names)))
        self._add_metrics(metrics)
        if name == _ROOT and not any(isinstance(v, int | float) and v for v in metrics.values()):
            self._roots_without_values.add(row)
        return TreeRow(row)

    def build_totals(self, root: TreeRow, budget: Budget) -> dict[str, pa.Array]:
        """Return the columns of ``activity_totals`` with the functions and scopes below a root, parents first.

        Raises:
            Damage: A function is not in the tree, or the call paths are too long.
        """
        sizes, parents = (np.frombuffer(column, np.int64)[: root + 1] for column in (self._sizes, self._parents))
        if sizes[root] != root + 1:
            raise Damage("a function is not among the children of another one")
        depths = _measure_depths(parents)
        order = np.empty(root + 1, np.int64)
        order[np.arange(root + 1) + depths - sizes + 1] = np.arange(root + 1)
        skipped = int(root in self._roots_without_values)
        if depths.max() - skipped > _MAX_DEPTH:
            raise Damage(_describe_limit())
        order = order[skipped:]
        numbers = np.zeros(root + 2, np.int64)
        numbers[order] = np.arange(1, len(order) + 1)
        depths = depths[order] - skipped
        names = pl.Series([_remove_folders(name) for name in self._names], dtype=pl.String)
        codes = np.frombuffer(self._codes, np.int32)[order]
        parent_ids = numbers[parents[order]]
        paths = _build_paths(names, codes, parent_ids - 1, depths, budget)
        kinds = np.frombuffer(self._are_activities, np.int8)[order]
        total, count, size = (_mask(np.frombuffer(column, np.int64)[order]) for column in self._integers)
        flops = np.frombuffer(self._flops)[order]
        return {
            "activity_total_id": pa.array(np.arange(1, len(order) + 1)),
            "parent_id": pa.array(parent_ids, mask=parent_ids == 0),
            "depth": pa.array(depths.astype(np.int32)),
            "path": _encode(paths),
            "name": _encode(names.gather(_convert(codes))),
            "kind": pa.DictionaryArray.from_arrays(kinds.astype(np.int32), ["scope", "activity"]),
            "device_id": _mask(np.frombuffer(self._devices, np.int64)[order]),
            "count": count,
            "total_ns": total,
            "bytes": size,
            "flops": pa.array(flops, mask=flops < 0),
            "flop_bits": _mask(np.frombuffer(self._widths, np.int32)[order]),
        }

    def _add_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Add the declared values of a function or scope. Other values are counted."""
        key = tuple(metrics)
        if (known := self._metric_names.get(key)) is None:
            known = self._metric_names.setdefault(key, _find_metric_names(key))
        self.other_metrics += known.others
        for column, name in zip(self._integers, _INTEGERS, strict=True):
            value = metrics.get(name)
            column.append(_MISSING if value is None else read_integer(value, name))
        self._flops.append(sum(_read_number(metrics[name], name) for name in known.flops) if known.flops else _MISSING)
        self._widths.append(known.width)
        device = metrics.get(DEVICE)
        text = str(device)
        number = read_integer(int(text), DEVICE, MAX_DEVICE) if len(text) < 20 and text.isdecimal() else _MISSING  # noqa: PLR2004
        self._devices.append(number)
        self._are_activities.append(device is not None and metrics.get(_INTEGERS[0]) is not None)


def read_integer(value: object, name: str, largest: int = MAX_INT) -> int:
    """Return an integer that is not negative, which may be stored as a floating-point number.

    Raises:
        Damage: It is not such a number.
    """
    number = value if type(value) is int else round(_read_number(value, name))
    if not 0 <= number <= largest:
        raise Damage(f"the value of {name} is not a number from 0 to {largest:,}")
    return number


def _read_number(value: object, name: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1e300:  # noqa: PLR2004
        return float(value)
    raise Damage(f"the value of {name} is not a number")


def _find_metric_names(names: Sequence[str]) -> MetricNames:
    flops = {name: match[1] for name in names if (match := _FLOPS.fullmatch(name))}
    widths = set(flops.values())
    width = widths.pop() if len(widths) == 1 else ""
    known = {*_INTEGERS, DEVICE, "device_type", *flops}
    return MetricNames(tuple(flops), int(width) if width else _MISSING, sum(name not in known for name in names))


def _remove_folders(name: str) -> str:
    """Remove the folders of the file in the name of a function of Python, such as ``/home/user/train.py:12@step``."""
    name = name.encode("utf-8", "replace").decode("utf-8")
    file = _FILE.search(name)
    if file is None:
        return name
    folder = _FOLDER.search(name, name.rfind("@", 0, file.start()) + 1, file.start())
    return name if folder is None else name[: folder.start()] + name[file.end() :]


def _measure_depths(parents: np.ndarray) -> np.ndarray:
    """Return the number of functions that contain each function, given the row of its parent, which is greater."""
    depths, above = (parents >= 0).astype(np.int64), parents
    while (is_inside := above >= 0).any():
        depths += np.where(is_inside, depths[above], 0)
        above = np.where(is_inside, above[above], _MISSING)
    return depths


def _build_paths(
    names: pl.Series, codes: np.ndarray, parents: np.ndarray, depths: np.ndarray, budget: Budget
) -> pl.Series:
    """Return the path of each function, level by level, given the row of its parent."""
    order = np.argsort(depths, kind="stable")
    ends = np.cumsum(np.bincount(depths)) if len(depths) else np.zeros(0, np.int64)
    places = np.empty(len(order), np.int64)
    levels: list[pl.Series] = []
    start = 0
    for depth, end in enumerate(ends):
        rows = order[start:end]
        places[rows] = np.arange(len(rows))
        paths = names.gather(_convert(codes[rows]))
        if depth:
            above = levels[-1].gather(_convert(places[parents[rows]]))
            lengths = above.str.len_chars().cast(pl.Int64) + paths.str.len_chars() + 1
            _check_lengths(lengths, budget)
            paths = above + "/" + paths
        else:
            _check_lengths(paths.str.len_chars(), budget)
        levels.append(paths)
        start = end
    if not levels:
        return pl.Series("", [], pl.String)
    by_level = pl.concat(levels)
    return by_level.gather(_convert(np.argsort(order, kind="stable")))


def _check_lengths(lengths: pl.Series, budget: Budget) -> None:
    if lengths.len() and int(lengths.max()) > _MAX_PATH_LENGTH:  # type: ignore[arg-type]
        raise Damage(_describe_limit())
    budget.reserve(int(lengths.sum()), _PATH_BYTES, "characters of call paths")


def _describe_limit() -> str:
    return f"a call path has more than {_MAX_PATH_LENGTH:,} characters or {_MAX_DEPTH:,} functions"


def _convert(rows: np.ndarray) -> pl.Series:
    return pl.Series(pl.from_arrow(pa.array(rows)))


def _encode(texts: pl.Series) -> pa.DictionaryArray:
    return texts.to_arrow().cast(pa.string()).dictionary_encode()


def _mask(values: np.ndarray) -> pa.Array:
    return pa.array(values, mask=values < 0)
