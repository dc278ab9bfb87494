"""What the files of one run hold together: which values are points of curves, which are texts, which neither."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.columns import compact, text
from tracekit.readers.tfevents.events import NO_TIME
from tracekit.readers.tfevents.values import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.readers.common.protobuf.decoding import Mask, Places
    from tracekit.readers.tfevents.events import FileEvents
    from tracekit.readers.tfevents.values import Metadata

MAX_NAMES, MAX_NAME = 100, 60
_SCALARS, _TEXT = "scalars", "text"
_METADATA, _METADATA_OF_FUNCTIONS = "graph_run_metadata", "graph_run_metadata_graph"
_SHOWN = {"images": "image", "histograms": "histogram", "audio": "audio", "": "tensor"}
_KINDS = {Kind.IMAGE: "image", Kind.HISTOGRAM: "histogram", Kind.AUDIO: "audio"}
_KIND_NAMES = ("simple_value", "tensor")


class Run:
    """The files of a run, in order.

    Attributes:
        name: Its name.
        files: What they hold.
        scalars: Which of its values are points of curves.
        texts: Which of its texts are for people.
        metadata: Whether a value, of all that the files hold, is run metadata.
        of_functions: Whether it is run metadata that hold the graphs of functions.
    """

    def __init__(self, name: str, files: Sequence[FileEvents]) -> None:
        self.name = name
        self.files = files
        points = [p for file in files for p in file.points]
        self._tags = _joined([p.values.tags for p in points])
        self._codes = self._tags.indices.to_numpy()
        self._kinds = np.concatenate([np.zeros(0, np.uint8), *(p.values.kinds for p in points)])
        self._plugins, self._is_scalar = self._told([p.values.metadata for p in points])
        tensor_scalar = (self._kinds == Kind.NUMBER) & self._is_scalar[self._codes]
        self.scalars: Places = np.flatnonzero((self._kinds == Kind.SIMPLE) | tensor_scalar)
        self._is_text = (self._kinds == Kind.TEXTS) & self._of_plugin(_TEXT)[self._codes]
        self._owners, self._elements, self._texts = _texts(files)
        self.texts: Places = np.flatnonzero(self._is_text[self._owners])
        single = (self._kinds == Kind.TEXTS) & (np.bincount(self._owners, minlength=len(self._kinds)) == 1)
        self.of_functions: Mask = single & self._of_plugin(_METADATA_OF_FUNCTIONS)[self._codes]
        self.metadata: Mask = self.of_functions | single & self._of_plugin(_METADATA)[self._codes]

    def scalar_columns(self, wanted: Sequence[str]) -> dict[str, pa.Array]:
        """Return columns of ``scalars`` of this run."""
        rows, made = self.scalars, {}
        for name in wanted:
            if name == "value":
                made[name] = pa.array(self._column("numbers")[rows])
            elif name == "kind":
                codes = (self._kinds[rows] != Kind.SIMPLE).astype(np.int32)
                made[name] = compact(pa.array(codes), pa.array(_KIND_NAMES))
            else:
                made[name] = self._shared(name, rows)
        return {name: column for name, column in made.items() if column is not None}

    def text_columns(self, wanted: Sequence[str]) -> dict[str, pa.Array]:
        """Return columns of ``texts`` of this run."""
        rows, made = self._owners[self.texts], {}
        for name in wanted:
            if name == "text":
                chosen = self._texts.take(pa.array(self.texts))
                made[name] = pa.chunked_array([text(chunk)[0] for chunk in chosen.chunks], pa.string())
            elif name == "element":
                made[name] = pa.array(self._elements[self.texts])
            else:
                made[name] = self._shared(name, rows)
        return {name: column for name, column in made.items() if column is not None}

    def undecoded(self) -> Counter[str]:
        """Count what no table holds, by name."""
        counts: Counter[str] = Counter()
        for file in self.files:
            counts.update(file.counts)
        left = np.ones(len(self._kinds), np.bool_)
        left[self.scalars] = False
        left &= ~(self._is_text | self.metadata)
        names = self._plugins.dictionary_encode()
        plugins = names.indices.to_numpy()[self._codes[left]] if len(names) else np.zeros(0, np.int64)
        pairs, found = np.unique(self._kinds[left].astype(np.int64) | plugins.astype(np.int64) << 8, return_counts=True)
        for pair, count in zip(pairs.tolist(), found.tolist(), strict=True):
            name = _named(Kind(pair & 255), names.dictionary[pair >> 8].as_py())
            counts[name if name in counts or len(counts) < MAX_NAMES else "other"] += count
        return counts

    def tags(self, rows: Places) -> pa.DictionaryArray:
        """Return the tags of some values."""
        return compact(pa.array(self._codes[rows]), self._tags.dictionary)

    def _shared(self, name: str, rows: Places) -> pa.Array | None:
        """Return a column that scalars and texts have; None if it is not this run's to know."""
        if name == "tag":
            return self.tags(rows)
        if name == "step":
            return pa.array(self._column("steps")[rows])
        if name == "wall_time_ns":
            times = self._column("times")[rows]
            return pa.array(times, mask=times == NO_TIME)
        return None

    def _column(self, name: str) -> Places:
        holders = ((p.values if name == "numbers" else p) for file in self.files for p in file.points)
        none = np.zeros(0, np.float64 if name == "numbers" else np.int64)
        return np.concatenate([none, *(getattr(p, name) for p in holders)])

    def _told(self, parts: Sequence[Metadata]) -> tuple[pa.Array, Mask]:
        """Return for each tag its plug-in, and whether its tensors are points of a curve; what is said first counts."""
        names = self._tags.dictionary
        told = pa.chunked_array([m.tags for m in parts], pa.string())
        tags = pc.index_in(told, names).to_numpy() if len(told) else np.zeros(0, np.int64)
        known, first = np.unique(tags, return_index=True)
        places = np.full(len(names), -1)
        places[known] = first
        where = pa.array(places, mask=places < 0)
        plugins = _taken(pa.chunked_array([m.plugins for m in parts], pa.string()), where).fill_null("")
        scalar = _taken(pa.chunked_array([m.scalar for m in parts], pa.bool_()), where).fill_null(
            pa.scalar(value=False)
        )
        either = pc.or_(scalar, pc.is_in(plugins, pa.array([_SCALARS, ""])))
        return plugins, either.to_numpy(zero_copy_only=False)

    def _of_plugin(self, name: str) -> Mask:
        found: Mask = pc.equal(self._plugins, name).to_numpy(zero_copy_only=False)
        return found


def _taken(column: pa.ChunkedArray, where: pa.Array) -> pa.Array:
    return pa.concat_arrays(column.take(where).chunks) if len(where) else column.slice(0, 0).combine_chunks()


def _joined(parts: Sequence[pa.DictionaryArray]) -> pa.DictionaryArray:
    kind = pa.dictionary(pa.int32(), pa.string())
    column = pa.chunked_array(parts, kind).unify_dictionaries()
    if not column.num_chunks:
        return pa.DictionaryArray.from_arrays(pa.array([], pa.int32()), pa.array([], pa.string()))
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _texts(files: Sequence[FileEvents]) -> tuple[Places, Places, pa.ChunkedArray]:
    """Join the texts of files: which value of the run each is of, its place in the tensor, its bytes."""
    owners, elements, texts, before = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [], 0
    for values in (p.values for file in files for p in file.points):
        owners.append(values.owners + before)
        elements.append(values.elements)
        texts.append(values.texts)
        before += len(values.kinds)
    return np.concatenate(owners), np.concatenate(elements), pa.chunked_array(texts, pa.binary())


def _named(kind: Kind, plugin: str) -> str:
    """Name what a value is that no table holds."""
    if kind in _KINDS:
        return _KINDS[kind]
    if kind == Kind.NOTHING and not plugin:
        return "value of no known kind"
    short = "".join(c if c.isprintable() else "?" for c in plugin[:MAX_NAME])
    return _SHOWN.get(plugin, short)
