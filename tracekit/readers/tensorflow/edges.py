"""Build the edges of a graph from the inputs of its nodes.

An input is written as ``NAME`` (output 0), ``NAME:OUTPUT`` or ``^NAME`` (control dependency). In the body of a
function, an input is written as ``NAME:ARGUMENT:OUTPUT``, or as the name of an argument of the function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.columns import compact_dictionary
from tracekit.readers.tensorflow.fields import slice_strings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.readers.common.protobuf.decoding import Buffer, Int64Array
    from tracekit.readers.common.protobuf.occurrences import Occurrences

_MAX_PARTS = 3


def build_edge_columns(
    buffer: Buffer, inputs: Occurrences, owners: Int64Array, nodes: Mapping[str, pa.Array]
) -> dict[str, pa.Array]:
    """Build one edge per input of a node, and return the columns of ``graph_edges`` by name.

    Args:
        buffer: The buffer that contains the inputs.
        inputs: Location of each input in the buffer, and row number of the node that has the input.
        owners: Number of the graph (0) or function (from 1) that each node belongs to.
        nodes: The columns ``name``, ``graph`` and ``run`` of the nodes.
    """
    target, node_count = pa.array(inputs.rows), len(owners)
    encoded = pa.concat_arrays([nodes["name"], slice_strings(buffer, inputs.starts, inputs.stops)]).dictionary_encode()
    names = encoded.indices.to_numpy(zero_copy_only=False)
    input_names = names[node_count:]
    parsed = _parse_inputs(encoded.dictionary)
    source_names = parsed.names[input_names]
    node_keys = np.concatenate((names[:node_count], source_names)).astype(np.int64)
    node_keys += np.concatenate((owners, owners[inputs.rows])) * len(parsed.strings)
    control = parsed.control[input_names]
    return {
        "edge_id": pa.array(np.arange(len(inputs))),
        "run": nodes["run"].take(target),
        "graph": nodes["graph"].take(target),
        "source": _find_node_indices_by_key(node_keys[:node_count], node_keys[node_count:]),
        "source_name": compact_dictionary(pa.array(source_names), parsed.strings),
        "source_argument": parsed.arguments.take(pa.array(input_names)),
        "source_output": pa.array(parsed.outputs[input_names], mask=control),
        "target": target,
        "target_input": _compute_input_numbers(inputs.rows, control),
        "control": pa.array(control),
    }


@dataclass(frozen=True, slots=True)
class _ParsedInputs:
    """The components of distinct strings. Each string is the name of a node or an input of a node.

    Attributes:
        strings: The distinct strings, followed by node names that occur only as a component of an input.
        names: Index in ``strings`` of the node name that each distinct string contains.
        arguments: The argument that each distinct string contains, or null.
        outputs: The output number that each distinct string contains, or 0 if it contains none.
        control: Whether each distinct string is a control dependency.
    """

    strings: pa.Array
    names: npt.NDArray[np.int64]
    arguments: pa.DictionaryArray
    outputs: npt.NDArray[np.int32]
    control: npt.NDArray[np.bool_]


def _parse_inputs(distinct_texts: pa.Array) -> _ParsedInputs:
    """Split distinct names and inputs of nodes into node name, argument, output number and control flag."""
    control = pc.starts_with(distinct_texts, "^")
    rows = np.flatnonzero(pc.or_(control, pc.match_substring(distinct_texts, ":")).to_numpy(zero_copy_only=False))
    without_caret = pc.replace_substring_regex(distinct_texts.take(pa.array(rows)), r"\A\^", "")
    split = pc.split_pattern(without_caret, ":", max_splits=_MAX_PARTS - 1)
    lengths = pc.list_value_length(split).to_numpy(zero_copy_only=False)
    flat, first = split.flatten(), np.cumsum(lengths) - lengths
    name, second, third = (flat.take(pa.array(first + i, mask=lengths <= i)) for i in range(_MAX_PARTS))
    is_output = pc.and_(pc.match_substring_regex(second, r"^[0-9]+$"), third.is_null())
    arguments = pc.if_else(is_output, None, second).dictionary_encode()
    outputs = np.zeros(len(distinct_texts), np.int32)
    outputs[rows] = _parse_int32(pc.if_else(is_output, second, third))
    positions = pc.index_in(name, distinct_texts)
    new_names = name.filter(positions.is_null()).dictionary_encode()
    names = np.arange(len(distinct_texts))
    names[rows] = positions.fill_null(-1).to_numpy(zero_copy_only=False)
    names[names < 0] = new_names.indices.to_numpy(zero_copy_only=False) + len(distinct_texts)
    part_rows = np.full(len(distinct_texts), -1)
    part_rows[rows] = np.arange(len(rows))
    all_arguments = arguments.take(pa.array(part_rows, mask=part_rows < 0))
    return _ParsedInputs(
        pa.concat_arrays([distinct_texts, new_names.dictionary]),
        names,
        all_arguments,
        outputs,
        control.to_numpy(zero_copy_only=False),
    )


def _parse_int32(strings: pa.Array) -> npt.NDArray[np.int32]:
    """Parse strings of one to nine decimal digits as integers. All other strings become 0."""
    fits = pc.match_substring_regex(strings, r"^[0-9]{1,9}$")
    numbers = pc.if_else(fits, strings, None).cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)
    return np.asarray(numbers, np.int32)


def _find_node_indices_by_key(node_keys: Int64Array, keys: Int64Array) -> pa.Array:
    """Return the index of the first occurrence of each key in ``node_keys``, null for missing keys."""
    distinct_keys, first = np.unique(node_keys, return_index=True)
    if not len(distinct_keys):
        return pa.nulls(len(keys), pa.int64())
    positions = np.minimum(np.searchsorted(distinct_keys, keys), len(distinct_keys) - 1)
    return pa.array(first[positions], mask=distinct_keys[positions] != keys)


def _compute_input_numbers(target_nodes: Int64Array, is_control: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the index of each input among the data inputs of its node, null for control dependencies."""
    before: Int64Array = np.cumsum(~is_control) - ~is_control
    numbers = before - before[np.searchsorted(target_nodes, target_nodes)] if len(target_nodes) else before
    return pa.array(numbers.astype(np.int32), mask=is_control)
