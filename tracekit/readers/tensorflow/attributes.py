"""Attributes of nodes: those that have a column of their own, the functions they name, and all others as JSON.

Few values are different, so each different one is taken apart once; what nodes have is told by number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.columns import DICTIONARY, compact
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import decode
from tracekit.readers.tensorflow import values
from tracekit.readers.tensorflow.fields import column, pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracekit.readers.common.protobuf.decoding import Buffer, Field, Places
    from tracekit.readers.common.protobuf.occurrences import Occurrences
    from tracekit.readers.tensorflow.values import Value

Numbers: TypeAlias = npt.NDArray[np.int64]

TYPED_BY = ("dtype", "DstT", "out_type", "T")
"""Attributes that hold the type of the elements; the first that a node has counts."""
OWN = {
    "output_shapes": ("_output_shapes", "list"),
    "strides": ("strides", "list"),
    "padding": ("padding", "s"),
    "data_format": ("data_format", "s"),
    "dilations": ("dilations", "list"),
    "ksize": ("ksize", "list"),
}
"""Columns, the attribute each is made of, and what that must hold."""
LONG = 1 << 16
"""Bytes of a value that is not taken apart."""
JOINED_AT_ONCE = 1 << 16
_KEY, _VALUE, _TENSOR, _DTYPE, _SHAPE = 1, 2, 8, 1, 2


@dataclass(frozen=True, slots=True)
class Attributes:
    """The attributes of n nodes, sorted by node and name.

    Attributes:
        nodes: Node of each.
        keys: Number of its name in ``names``.
        codes: Number of its value in ``values``.
    """

    rows: int
    nodes: Numbers
    keys: Numbers
    codes: Numbers
    names: Sequence[str]
    values: Sequence[Value]

    def own(self) -> dict[str, pa.Array]:
        """Return the columns made of one attribute each, and the type of the elements."""
        told = pa.array([v.text for v in self.values], pa.string())
        plain = pa.array([v.json for v in self.values], pa.string())
        made = {name: self._column([self._chosen(*of)], told if of[1] == "s" else plain) for name, of in OWN.items()}
        made["dtype"] = self._column([self._chosen(key, "type") for key in reversed(TYPED_BY)], told)
        return made

    def json(self) -> pa.ChunkedArray:
        """Return all others as JSON objects; null for nodes that have none."""
        others = np.ones(len(self.nodes), np.bool_)
        for of in OWN.values():
            others[self._chosen(*of)] = False
        rows = np.flatnonzero(others)
        pairs = pa.array(self.keys[rows] * max(1, len(self.values)) + self.codes[rows]).dictionary_encode()
        split = (divmod(pair, len(self.values)) for pair in pairs.dictionary.to_pylist())
        parts = [f"{values.dumped(self.names[key])}:{self.values[code].json}" for key, code in split]
        return joined(self.rows, self.nodes[rows], pa.array(parts, pa.string()), pairs.indices, "{}")

    def functions(self, called: Places, ops: pa.Array) -> pa.ChunkedArray:
        """Return the names of called functions as JSON lists; null for nodes that call none.

        Args:
            called: Nodes whose operation is a function.
            ops: Their operations.
        """
        parts = [",".join(map(values.dumped, v.functions)) for v in self.values]
        names = np.array([bool(p) for p in parts], np.bool_)
        rows = np.flatnonzero(names[self.codes]) if len(names) else np.zeros(0, np.int64)
        encoded = ops.dictionary_encode()
        texts = pa.array([*parts, *map(values.dumped, encoded.dictionary.to_pylist())], pa.string())
        nodes = np.concatenate((called, self.nodes[rows]))
        codes = np.concatenate((encoded.indices.to_numpy(zero_copy_only=False) + len(parts), self.codes[rows]))
        order = np.argsort(nodes, kind="stable")
        return joined(self.rows, nodes[order], texts, pa.array(codes[order], pa.int32()), "[]")

    def _chosen(self, key: str, kind: str) -> Places:
        """Which of all attributes have a name and hold a kind of value."""
        if key not in self.names:
            return np.zeros(0, np.int64)
        rows = np.flatnonzero(self.keys == self.names.index(key))
        fitting = np.array([v.kind == kind for v in self.values], np.bool_)
        return rows[fitting[self.codes[rows]]]

    def _column(self, chosen: Iterable[Places], texts: pa.Array) -> pa.Array:
        """Make a column of some attributes, the last of which counts."""
        codes = np.full(self.rows, -1, np.int64)
        for rows in chosen:
            codes[self.nodes[rows]] = self.codes[rows]
        absent = codes < 0
        return pa.nulls(self.rows, DICTIONARY) if absent.all() else compact(pa.array(codes, mask=absent), texts)


def read(buffer: Buffer, found: Occurrences, rows: int) -> Attributes:
    """Read the attributes of n nodes.

    Raises:
        Damage: A value is none.
    """
    entries = decode(buffer, found.starts, found.stops, (_KEY, _VALUE))
    keys = column(buffer, entries.get(_KEY), len(found)).fill_null("").dictionary_encode()
    codes, values_ = _values(buffer, *_spans(entries.get(_VALUE), len(found)))
    names = keys.dictionary.to_pylist()
    ranks = np.argsort(np.argsort(np.array(names, object))) if names else np.zeros(0, np.int64)
    numbers = keys.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    places = found.rows * max(1, len(names)) + ranks[numbers]
    order = np.argsort(places, kind="stable")
    last = np.ones(len(order), np.bool_)
    last[:-1] = places[order][1:] != places[order][:-1]
    order = order[last]
    return Attributes(rows, found.rows[order], numbers[order], codes[order], names, values_)


def joined(rows: int, nodes: Numbers, texts: pa.Array, codes: pa.Array, around: str) -> pa.ChunkedArray:
    """Join the texts of each node by commas: m texts of ascending nodes in, n texts out, null for nodes without one."""
    made = []
    for first in range(0, rows, JOINED_AT_ONCE):
        last = min(rows, first + JOINED_AT_ONCE)
        edges = np.searchsorted(nodes, np.arange(first, last + 1))
        part = texts.take(codes.slice(edges[0], edges[-1] - edges[0]))
        empty = np.append(edges[1:] == edges[:-1], False)
        offsets = pa.array((edges - edges[0]).astype(np.int32), mask=empty)
        try:
            lists = pc.binary_join(pa.ListArray.from_arrays(offsets, part), ",")
            made.append(pc.binary_join_element_wise(around[0], lists, around[1], ""))
        except pa.ArrowInvalid as e:
            raise Damage("attributes are too large") from e
    return pa.chunked_array(made, pa.string())


def _spans(field: Field | None, rows: int) -> tuple[Places, Places]:
    """Places of a field of n messages; where it is absent, the same empty one."""
    if field is None:
        return np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    field.spans()
    starts, stops = field.values.view(np.int64), field.stops
    return starts, starts if stops is None else stops


def _values(buffer: Buffer, starts: Places, stops: Places) -> tuple[Numbers, list[Value]]:
    """Take n values apart: n numbers, and the value behind each number."""
    codes, found = np.zeros(len(starts), np.int64), list[values.Value]()
    held = decode(buffer, starts, stops, (_TENSOR,)).get(_TENSOR)
    is_tensor = np.zeros(len(starts), np.bool_) if held is None else _everywhere(held, len(starts))

    def put(rows: Places, encoded: pa.DictionaryArray, make: Callable[[bytes], Value]) -> None:
        codes[rows] = encoded.indices.to_numpy(zero_copy_only=False) + len(found)
        found.extend(map(make, encoded.dictionary.to_pylist()))

    if held is not None:
        put(np.flatnonzero(is_tensor), _tensors(buffer, *held.spans()), _tensor)
    is_long = ~is_tensor & (stops - starts > LONG)
    short, long = np.flatnonzero(~is_tensor & ~is_long), np.flatnonzero(is_long)
    put(short, _shown(buffer, starts[short], stops[short]).dictionary_encode(), values.value)
    put(long, pa.array(stops[long] - starts[long]).dictionary_encode(), values.long)  # type: ignore[arg-type]
    return codes, found


def _shown(buffer: Buffer, starts: Places, stops: Places) -> pa.Array:
    """Cut values out; the empty ones may lie anywhere."""
    full = stops > starts
    if full.all():
        return pieces(buffer, starts, stops)
    places = np.cumsum(full) - 1
    return pieces(buffer, starts[full], stops[full]).take(pa.array(places, mask=~full)).fill_null(b"")


def _tensors(buffer: Buffer, starts: Places, stops: Places) -> pa.DictionaryArray:
    """Take tensors apart: the type as text, a colon and the shape of each."""
    fields = decode(buffer, starts, stops, (_DTYPE, _SHAPE))
    dtype = fields.get(_DTYPE)
    if dtype is not None and dtype.stops is not None:
        raise Damage("the type of a tensor is no number")
    numbers = np.zeros(len(starts), np.int64) if dtype is None else dtype.values.astype(np.int64)
    shape = fields.get(_SHAPE)
    shapes = _shown(buffer, *_spans(shape, len(starts)))
    return pc.binary_join_element_wise(
        pa.array(numbers).cast(pa.string()).cast(pa.binary()), shapes, b":"
    ).dictionary_encode()


def _tensor(both: bytes) -> Value:
    dtype, _, shape = both.partition(b":")
    return values.tensor(int(dtype), shape)


def _everywhere(field: Field, rows: int) -> npt.NDArray[np.bool_]:
    return np.ones(rows, np.bool_) if field.valid is None else field.valid
