"""Attributes of nodes: those that have a column of their own, the functions they name, and all others as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.columns import DICTIONARY, compact
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import decode
from tracekit.readers.tensorflow import distinct, values
from tracekit.readers.tensorflow.fields import column, joined, spans

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracekit.readers.common.protobuf.decoding import Buffer, Places
    from tracekit.readers.common.protobuf.occurrences import Occurrences
    from tracekit.readers.tensorflow.distinct import Distinct, Numbers

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
_KEY, _VALUE = 1, 2


@dataclass(frozen=True, slots=True)
class Attributes:
    """The attributes of n nodes, sorted by node and name.

    Attributes:
        rows: Number of nodes.
        nodes: Node of each attribute.
        keys: Number of its name in ``names``.
        codes: Number of its value in ``values``.
    """

    rows: int
    nodes: Numbers
    keys: Numbers
    codes: Numbers
    names: Sequence[str]
    values: Distinct

    def own(self) -> dict[str, pa.Array]:
        """Return the columns made of one attribute each, and the type of the elements."""
        told, json = self.values.told, self.values.json
        made = {name: self._column([self._chosen(*of)], told if of[1] == "s" else json) for name, of in OWN.items()}
        made["dtype"] = self._column([self._chosen(key, "type") for key in reversed(TYPED_BY)], told)
        return made

    def json(self) -> pa.ChunkedArray:
        """Return all others as JSON objects; null for nodes that have none."""
        others = np.ones(len(self.nodes), np.bool_)
        for of in OWN.values():
            others[self._chosen(*of)] = False
        rows = np.flatnonzero(others)
        names = pa.array(map(values.dumped, self.names), pa.string())
        try:
            given = self.values.json.take(pa.array(self.codes[rows]))
            parts = pc.binary_join_element_wise(names.take(pa.array(self.keys[rows])), given, ":")
        except pa.ArrowInvalid as e:
            raise Damage("attributes are too large") from e
        return joined(self.rows, self.nodes[rows], parts, "{}")

    def functions(self, called: Places, ops: pa.Array) -> pa.ChunkedArray:
        """Return the names of called functions as JSON lists; null for nodes that call none.

        Args:
            called: Nodes whose operation is a function.
            ops: Their operations.
        """
        named = self.values.functions
        rows = np.flatnonzero(np.isin(self.codes, list(named)))
        encoded = ops.dictionary_encode()
        calls = pa.array(map(values.dumped, encoded.dictionary.to_pylist()), pa.string()).take(encoded.indices)
        parts = pa.concat_arrays([calls, pa.array([named[int(code)] for code in self.codes[rows]], pa.string())])
        nodes = np.concatenate((called, self.nodes[rows]))
        order = np.argsort(nodes, kind="stable")
        return joined(self.rows, nodes[order], parts.take(pa.array(order)), "[]")

    def _chosen(self, key: str, kind: str) -> Places:
        """Which of all attributes have a name and hold a kind of value."""
        if key not in self.names:
            return np.zeros(0, np.int64)
        fitting = self.values.kinds[self.codes] == distinct.KINDS.index(kind)
        return np.flatnonzero((self.keys == self.names.index(key)) & fitting)

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
    codes, given = distinct.read(buffer, *spans(entries.get(_VALUE), len(found)))
    names = keys.dictionary.to_pylist()
    ranks = np.argsort(np.argsort(np.array(names, object))) if names else np.zeros(0, np.int64)
    numbers = keys.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    places = found.rows * max(1, len(names)) + ranks[numbers]
    order = np.argsort(places, kind="stable")
    last = np.ones(len(order), np.bool_)
    last[:-1] = places[order][1:] != places[order][:-1]
    order = order[last]
    return Attributes(rows, found.rows[order], numbers[order], codes[order], names, given)
