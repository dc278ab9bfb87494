"""Combine the files of one run, and determine which of their summary values are scalars and which are texts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.columns import compact_dictionary, convert_to_strings
from tracekit.readers.tfevents.events import NO_TIME
from tracekit.readers.tfevents.values import ValueKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.readers.common.protobuf.decoding import Int64Array, Mask
    from tracekit.readers.tfevents.events import FileEvents
    from tracekit.readers.tfevents.values import TagMetadata

MAX_NAMES, MAX_NAME_LENGTH = 100, 60
_SCALARS, _TEXT = "scalars", "text"
_METADATA, _FUNCTION_METADATA = "graph_run_metadata", "graph_run_metadata_graph"
_PLUGIN_KINDS = {"images": "image", "histograms": "histogram", "audio": "audio", "": "tensor"}
_KINDS = {ValueKind.IMAGE: "image", ValueKind.HISTOGRAM: "histogram", ValueKind.AUDIO: "audio"}
_KIND_NAMES = ("simple_value", "tensor")


class Run:
    """The files of a run and their summary values, concatenated in file order.

    Attributes:
        name: Name of the run.
        files: Contents of each file of the run.
        scalars: Row numbers of the values that are scalars.
        texts: Row numbers of the strings that belong to text values. Rows are numbered across all strings in the values
            of the run, one row per string.
        metadata: Mask of the values that are run metadata messages.
        has_functions: Mask of the values that are run metadata messages with graphs of functions.
    """

    def __init__(self, name: str, files: Sequence[FileEvents]) -> None:
        self.name = name
        self.files = files
        points = [p for file in files for p in file.points]
        self._tags = _concat_tags([p.values.tags for p in points])
        self._codes = self._tags.indices.to_numpy()
        self._kinds = np.concatenate([np.zeros(0, np.uint8), *(p.values.kinds for p in points)])
        self._plugins, self._is_scalar = self._collect_tag_metadata([p.values.metadata for p in points])
        tensor_scalar = (self._kinds == ValueKind.NUMBER) & self._is_scalar[self._codes]
        self.scalars: Int64Array = np.flatnonzero((self._kinds == ValueKind.SIMPLE) | tensor_scalar)
        self._is_text = (self._kinds == ValueKind.TEXTS) & self._compute_mask_of_plugin_tags(_TEXT)[self._codes]
        self._owners, self._elements, self._texts = _concat_strings(files)
        self.texts: Int64Array = np.flatnonzero(self._is_text[self._owners])
        single = (self._kinds == ValueKind.TEXTS) & (np.bincount(self._owners, minlength=len(self._kinds)) == 1)
        self.has_functions: Mask = single & self._compute_mask_of_plugin_tags(_FUNCTION_METADATA)[self._codes]
        self.metadata: Mask = self.has_functions | single & self._compute_mask_of_plugin_tags(_METADATA)[self._codes]

    def build_scalar_columns(self, names: Sequence[str]) -> dict[str, pa.Array]:
        """Return the requested columns of the table ``scalars`` for this run.

        Columns that event files do not contain are omitted.
        """
        rows, columns = self.scalars, {}
        for name in names:
            if name == "value":
                columns[name] = pa.array(self._concat_attribute("numbers")[rows])
            elif name == "kind":
                codes = (self._kinds[rows] != ValueKind.SIMPLE).astype(np.int32)
                columns[name] = compact_dictionary(pa.array(codes), pa.array(_KIND_NAMES))
            else:
                columns[name] = self._build_common_column(name, rows)
        return {name: column for name, column in columns.items() if column is not None}

    def build_text_columns(self, names: Sequence[str]) -> dict[str, pa.Array]:
        """Return the requested columns of the table ``texts`` for this run.

        Columns that event files do not contain are omitted.
        """
        rows, columns = self._owners[self.texts], {}
        for name in names:
            if name == "text":
                strings = self._texts.take(pa.array(self.texts))
                columns[name] = pa.chunked_array(
                    [convert_to_strings(chunk)[0] for chunk in strings.chunks], pa.string()
                )
            elif name == "element":
                columns[name] = pa.array(self._elements[self.texts])
            else:
                columns[name] = self._build_common_column(name, rows)
        return {name: column for name, column in columns.items() if column is not None}

    def count_undecoded(self) -> Counter[str]:
        """Return the number of events and summary values that belong to no table, by kind."""
        counts: Counter[str] = Counter()
        for file in self.files:
            counts.update(file.counts)
        is_undecoded = np.ones(len(self._kinds), np.bool_)
        is_undecoded[self.scalars] = False
        is_undecoded &= ~(self._is_text | self.metadata)
        names = self._plugins.dictionary_encode()
        plugins = names.indices.to_numpy()[self._codes[is_undecoded]] if len(names) else np.zeros(0, np.int64)
        pairs, pair_counts = np.unique(
            self._kinds[is_undecoded].astype(np.int64) | plugins.astype(np.int64) << 8, return_counts=True
        )
        for pair, count in zip(pairs.tolist(), pair_counts.tolist(), strict=True):
            name = _format_undecoded_kind(ValueKind(pair & 255), names.dictionary[pair >> 8].as_py())
            counts[name if name in counts or len(counts) < MAX_NAMES else "other"] += count
        return counts

    def take_tags(self, rows: Int64Array) -> pa.DictionaryArray:
        """Return the tags of the values with the given row numbers."""
        return compact_dictionary(pa.array(self._codes[rows]), self._tags.dictionary)

    def _build_common_column(self, name: str, rows: Int64Array) -> pa.Array | None:
        """Return the column ``tag``, ``step`` or ``wall_time_ns`` of the values with the given row numbers.

        Return None for any other column.
        """
        if name == "tag":
            return self.take_tags(rows)
        if name == "step":
            return pa.array(self._concat_attribute("steps")[rows])
        if name == "wall_time_ns":
            times = self._concat_attribute("times")[rows]
            return pa.array(times, mask=times == NO_TIME)
        return None

    def _concat_attribute(self, name: str) -> Int64Array:
        holders = ((p.values if name == "numbers" else p) for file in self.files for p in file.points)
        empty = np.zeros(0, np.float64 if name == "numbers" else np.int64)
        return np.concatenate([empty, *(getattr(p, name) for p in holders)])

    def _collect_tag_metadata(self, batches: Sequence[TagMetadata]) -> tuple[pa.Array, Mask]:
        """Return the TensorBoard plug-in of each tag, and a mask of the tags whose tensors are scalars.

        If several values contain metadata of the same tag, the metadata of the first value is used.
        """
        names = self._tags.dictionary
        described = pa.chunked_array([m.tags for m in batches], pa.string())
        tags = pc.index_in(described, names).to_numpy() if len(described) else np.zeros(0, np.int64)
        described_tags, first = np.unique(tags, return_index=True)
        rows = np.full(len(names), -1)
        rows[described_tags] = first
        indices = pa.array(rows, mask=rows < 0)
        plugins = _take_as_array(pa.chunked_array([m.plugins for m in batches], pa.string()), indices).fill_null("")
        scalar = _take_as_array(pa.chunked_array([m.scalar for m in batches], pa.bool_()), indices).fill_null(
            pa.scalar(value=False)
        )
        either = pc.or_(scalar, pc.is_in(plugins, pa.array([_SCALARS, ""])))
        return plugins, either.to_numpy(zero_copy_only=False)

    def _compute_mask_of_plugin_tags(self, plugin: str) -> Mask:
        mask: Mask = pc.equal(self._plugins, plugin).to_numpy(zero_copy_only=False)
        return mask


def _take_as_array(column: pa.ChunkedArray, indices: pa.Array) -> pa.Array:
    return pa.concat_arrays(column.take(indices).chunks) if len(indices) else column.slice(0, 0).combine_chunks()


def _concat_tags(batches: Sequence[pa.DictionaryArray]) -> pa.DictionaryArray:
    kind = pa.dictionary(pa.int32(), pa.string())
    column = pa.chunked_array(batches, kind).unify_dictionaries()
    if not column.num_chunks:
        return pa.DictionaryArray.from_arrays(pa.array([], pa.int32()), pa.array([], pa.string()))
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _concat_strings(files: Sequence[FileEvents]) -> tuple[Int64Array, Int64Array, pa.ChunkedArray]:
    """Concatenate the strings in the summary values of several files.

    Returns:
        The row number of the value that contains each string, the position of the string in the value, and its bytes.
    """
    owners, elements, texts, value_count = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [], 0
    for values in (p.values for file in files for p in file.points):
        owners.append(values.owners + value_count)
        elements.append(values.elements)
        texts.append(values.texts)
        value_count += len(values.kinds)
    return np.concatenate(owners), np.concatenate(elements), pa.chunked_array(texts, pa.binary())


def _format_undecoded_kind(kind: ValueKind, plugin: str) -> str:
    """Return the name under which ``count_undecoded`` reports the summary values of a kind and TensorBoard plug-in."""
    if kind in _KINDS:
        return _KINDS[kind]
    if kind == ValueKind.NOTHING and not plugin:
        return "value of no known kind"
    short = "".join(c if c.isprintable() else "?" for c in plugin[:MAX_NAME_LENGTH])
    return _PLUGIN_KINDS.get(plugin, short)
