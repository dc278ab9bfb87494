"""Inputs of nodes as edges.

An input is written ``NAME`` (of output 0), ``NAME:OUTPUT`` or ``^NAME`` (control); in the body of a function
``NAME:ARGUMENT:OUTPUT`` or the name of an argument of the function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.columns import compact
from tracekit.readers.tensorflow.fields import texts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.readers.common.protobuf.decoding import Buffer, Places
    from tracekit.readers.common.protobuf.occurrences import Occurrences

_PARTS = 3


def edges(buffer: Buffer, inputs: Occurrences, owners: Places, nodes: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Make edges: m inputs of n nodes in, m rows out.

    Args:
        buffer: Holds the inputs.
        inputs: Where they are, and whose.
        owners: Number of the graph, or of the function, that each node belongs to.
        nodes: Columns of the nodes: ``name``, ``graph``, ``run``.
    """
    target, nodes_before = pa.array(inputs.rows), len(owners)
    encoded = pa.concat_arrays([nodes["name"], texts(buffer, inputs.starts, inputs.stops)]).dictionary_encode()
    names = encoded.indices.to_numpy(zero_copy_only=False)
    given = names[nodes_before:]
    written = _written(encoded.dictionary)
    named = written.names[given]
    wanted = np.concatenate((names[:nodes_before], named)).astype(np.int64)
    wanted += np.concatenate((owners, owners[inputs.rows])) * len(written.texts)
    control = written.control[given]
    return {
        "edge_id": pa.array(np.arange(len(inputs))),
        "run": nodes["run"].take(target),
        "graph": nodes["graph"].take(target),
        "source": _sources(wanted[:nodes_before], wanted[nodes_before:]),
        "source_name": compact(pa.array(named), written.texts),
        "source_argument": written.arguments.take(pa.array(given)),
        "source_output": pa.array(written.outputs[given], mask=control),
        "target": target,
        "target_input": _numbers(inputs.rows, control),
        "control": pa.array(control),
    }


@dataclass(frozen=True, slots=True)
class _Written:
    """What is written as inputs, n different texts taken apart.

    Attributes:
        texts: The n texts, and further names.
        names: Number, in ``texts``, of the name in each.
        arguments: The argument in each, if it has one.
        outputs: The number of the output in each.
        control: Whether each is a control dependency.
    """

    texts: pa.Array
    names: npt.NDArray[np.int64]
    arguments: pa.DictionaryArray
    outputs: npt.NDArray[np.int32]
    control: npt.NDArray[np.bool_]


def _written(different: pa.Array) -> _Written:
    """Take different inputs apart; most are a name and nothing else."""
    control = pc.starts_with(different, "^")
    rows = np.flatnonzero(pc.or_(control, pc.match_substring(different, ":")).to_numpy(zero_copy_only=False))
    plain = pc.replace_substring_regex(different.take(pa.array(rows)), r"\A\^", "")
    split = pc.split_pattern(plain, ":", max_splits=_PARTS - 1)
    lengths = pc.list_value_length(split).to_numpy(zero_copy_only=False)
    flat, first = split.flatten(), np.cumsum(lengths) - lengths
    name, second, third = (flat.take(pa.array(first + i, mask=lengths <= i)) for i in range(_PARTS))
    is_output = pc.and_(pc.match_substring_regex(second, r"^[0-9]+$"), third.is_null())
    arguments = pc.if_else(is_output, None, second).dictionary_encode()
    outputs = np.zeros(len(different), np.int32)
    outputs[rows] = _small(pc.if_else(is_output, second, third))
    known = pc.index_in(name, different)
    others = name.filter(known.is_null()).dictionary_encode()
    names = np.arange(len(different))
    names[rows] = known.fill_null(-1).to_numpy(zero_copy_only=False)
    names[names < 0] = others.indices.to_numpy(zero_copy_only=False) + len(different)
    where = np.full(len(different), -1)
    where[rows] = np.arange(len(rows))
    every = arguments.take(pa.array(where, mask=where < 0))
    return _Written(
        pa.concat_arrays([different, others.dictionary]), names, every, outputs, control.to_numpy(zero_copy_only=False)
    )


def _small(texts_: pa.Array) -> npt.NDArray[np.int32]:
    """Read texts as numbers of 32 bits; 0 where they are none."""
    fits = pc.match_substring_regex(texts_, r"^[0-9]{1,9}$")
    found = pc.if_else(fits, texts_, None).cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)
    return np.asarray(found, np.int32)


def _sources(nodes: Places, wanted: Places) -> pa.Array:
    """Find nodes by what is behind their number: m wanted numbers in, m nodes out, the first of each, null for none."""
    known, first = np.unique(nodes, return_index=True)
    if not len(known):
        return pa.nulls(len(wanted), pa.int64())
    places = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return pa.array(first[places], mask=known[places] != wanted)


def _numbers(rows: Places, control: npt.NDArray[np.bool_]) -> pa.Array:
    """Number the inputs of each node that are not control dependencies."""
    before: Places = np.cumsum(~control) - ~control
    numbers = before - before[np.searchsorted(rows, rows)] if len(rows) else before
    return pa.array(numbers.astype(np.int32), mask=control)
