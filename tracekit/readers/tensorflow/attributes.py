"""Decode the attributes of graph nodes.

The attributes in ``COLUMN_ATTRIBUTES`` become columns. All other attributes of a node become one JSON object. Two
further columns contain the element type of the node and the names of the functions that its attributes refer to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.columns import DICTIONARY, compact_dictionary
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import decode
from tracekit.readers.common.protobuf.fields import join_strings_by_row
from tracekit.readers.tensorflow import distinct, values
from tracekit.readers.tensorflow.fields import build_string_column, compute_field_spans

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracekit.readers.common.protobuf.decoding import Buffer, Int64Array, Occurrences
    from tracekit.readers.tensorflow.distinct import DistinctValues

DTYPE_ATTRIBUTES = ("dtype", "DstT", "out_type", "T")
"""Attributes that contain the type of the elements. The first one that a node has is used."""
COLUMN_ATTRIBUTES = {
    "output_shapes": ("_output_shapes", "list"),
    "strides": ("strides", "list"),
    "padding": ("padding", "s"),
    "data_format": ("data_format", "s"),
    "dilations": ("dilations", "list"),
    "ksize": ("ksize", "list"),
}
"""The attribute that a column is read from, as the name of the attribute and the kind of its value, by column."""
_KEY, _VALUE = 1, 2


@dataclass(frozen=True, slots=True)
class NodeAttributes:
    """The attributes of all nodes, sorted by node and name.

    Attributes:
        node_count: Number of nodes.
        nodes: Row number of the node that each attribute belongs to.
        keys: Index in ``names`` of the name of each attribute.
        codes: Code of the value of each attribute, which is its index in ``values``.
        names: The distinct names of attributes.
        values: The distinct values of attributes.
    """

    node_count: int
    nodes: Int64Array
    keys: Int64Array
    codes: Int64Array
    names: Sequence[str]
    values: DistinctValues

    def build_attribute_columns(self) -> dict[str, pa.Array]:
        """Return one column per attribute in ``COLUMN_ATTRIBUTES``, and the column ``dtype`` with the element types."""
        strings, json = self.values.strings, self.values.json
        arrays = {
            name: self._build_column(
                [self._find_attribute_indices(*attribute)], strings if attribute[1] == "s" else json
            )
            for name, attribute in COLUMN_ATTRIBUTES.items()
        }
        arrays["dtype"] = self._build_column(
            [self._find_attribute_indices(key, "type") for key in reversed(DTYPE_ATTRIBUTES)], strings
        )
        return arrays

    def format_other_attributes(self) -> pa.ChunkedArray:
        """Return, for each node, a JSON object with the attributes that have no column, or null if it has none."""
        is_other = np.ones(len(self.nodes), np.bool_)
        for attribute in COLUMN_ATTRIBUTES.values():
            is_other[self._find_attribute_indices(*attribute)] = False
        rows = np.flatnonzero(is_other)
        names = pa.array(map(values.dump_json, self.names), pa.string())
        try:
            encoded = self.values.json.take(pa.array(self.codes[rows]))
            members = pc.binary_join_element_wise(names.take(pa.array(self.keys[rows])), encoded, ":")
        except pa.ArrowInvalid as e:
            raise Damage("the attributes of the nodes exceed 2 GiB, the maximum size of an Arrow string array") from e
        return join_strings_by_row(self.node_count, self.nodes[rows], members, "{}")

    def format_function_names(self, call_nodes: Int64Array, ops: pa.Array) -> pa.ChunkedArray:
        """Return, for each node, a JSON array with the names of the functions that the node refers to.

        A node refers to a function if the node calls the function, or if an attribute contains the function. The array
        is null for nodes that refer to no function.

        Args:
            call_nodes: Row numbers of the nodes whose operation is the name of a function.
            ops: The operation of each of these nodes.
        """
        function_lists = self.values.functions
        rows = np.flatnonzero(np.isin(self.codes, list(function_lists)))
        encoded = ops.dictionary_encode()
        calls = pa.array(map(values.dump_json, encoded.dictionary.to_pylist()), pa.string()).take(encoded.indices)
        names = pa.concat_arrays(
            [calls, pa.array([function_lists[int(code)] for code in self.codes[rows]], pa.string())]
        )
        nodes = np.concatenate((call_nodes, self.nodes[rows]))
        order = np.argsort(nodes, kind="stable")
        return join_strings_by_row(self.node_count, nodes[order], names.take(pa.array(order)), "[]")

    def _find_attribute_indices(self, name: str, kind: str) -> Int64Array:
        """Return the indices of the attributes that have the given name and the given kind of value."""
        if name not in self.names:
            return np.zeros(0, np.int64)
        fitting = self.values.kinds[self.codes] == distinct.KINDS.index(kind)
        return np.flatnonzero((self.keys == self.names.index(name)) & fitting)

    def _build_column(self, index_arrays: Iterable[Int64Array], strings: pa.Array) -> pa.Array:
        """Build a column with one value per node from the attributes at the given indices.

        Args:
            index_arrays: Arrays of indices of attributes, one array per attribute name. If a node has several of these
                attributes, the one in the last array is used.
            strings: String of each distinct attribute value.
        """
        codes = np.full(self.node_count, -1, np.int64)
        for rows in index_arrays:
            codes[self.nodes[rows]] = self.codes[rows]
        missing = codes < 0
        return (
            pa.nulls(self.node_count, DICTIONARY)
            if missing.all()
            else compact_dictionary(pa.array(codes, mask=missing), strings)
        )


def read_attributes(buffer: Buffer, occurrences: Occurrences, node_count: int) -> NodeAttributes:
    """Decode the attributes of nodes. If several attributes of a node have the same name, the last one is used.

    Args:
        buffer: The buffer that contains the encoded attributes.
        occurrences: Location of each attribute in the buffer, and row number of the node that has the attribute.
        node_count: Number of nodes.

    Raises:
        Damage: A value is not a valid message.
    """
    entries = decode(buffer, occurrences.starts, occurrences.stops, (_KEY, _VALUE))
    keys = build_string_column(buffer, entries.get(_KEY), len(occurrences)).fill_null("").dictionary_encode()
    codes, distinct_values = distinct.decode_attribute_values(
        buffer, *compute_field_spans(entries.get(_VALUE), len(occurrences))
    )
    names = keys.dictionary.to_pylist()
    ranks = np.argsort(np.argsort(np.array(names, object))) if names else np.zeros(0, np.int64)
    numbers = keys.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    sort_keys = occurrences.rows * max(1, len(names)) + ranks[numbers]
    order = np.argsort(sort_keys, kind="stable")
    last = np.ones(len(order), np.bool_)
    last[:-1] = sort_keys[order][1:] != sort_keys[order][:-1]
    order = order[last]
    return NodeAttributes(node_count, occurrences.rows[order], numbers[order], codes[order], names, distinct_values)
