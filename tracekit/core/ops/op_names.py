"""Divide the names of ops of ``emit_nvtx``, such as ``aten::mm, seq = 3, op_id = 9, sizes = [[2, 3], [3, 4]]``.

Nearly all of these names differ, but only in their numbers: they have few distinct names without arguments, and few
distinct sizes. The program ``native/op_names.c`` finds both in one pass over the bytes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from tracekit.core.series import create_nullable_series
from tracekit.native.program import Program
from tracekit.system.sorting import create_series
from tracekit.system.threads import map_in_order

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    import pyarrow as pa

    from tracekit.native.arrays import ArraySandbox

_MARKERS: Final = {
    "SEQUENCE": ", seq = ",
    "OP_ID": ", op_id = ",
    "SIZES": ", sizes = [",
    "INPUTS": ", input_op_ids = [",
}
_PREFIXES: Final = ("autograd::engine::", "torch::", "aten::")
_STRINGS: Final = tuple(text.encode() for text in (*_MARKERS.values(), *_PREFIXES))
_SHAPES: Final = r", sizes = (\[[\[\]\d, ]*\])"
_MAX_DIGITS, _PROBES, _PADDING = 18, 16, 32
_DICTIONARIES: Final = ("name", "sizes")
PROGRAM: Final = Program(
    "op_names",
    {"parse": ("rows", "slots", "seed", "names", "sizes")},
    {
        **{name: number for number, name in enumerate(_MARKERS)},
        "MARKERS": len(_MARKERS),
        "PREFIXES": len(_PREFIXES),
        "MAX_DIGITS": _MAX_DIGITS,
        "PROBES": _PROBES,
    },
    {
        "parse": {
            "bytes": np.uint8,
            "edges": np.uint32,
            "strings": np.uint8,
            "string_edges": np.uint32,
            "is_op": np.uint8,
            "sequence": np.int64,
            "name": np.uint32,
            "sizes": np.uint32,
            **{f"{d}_{part}": np.uint32 for d in _DICTIONARIES for part in ("table", "row", "start", "size")},
        }
    },
)
_CHUNK_NAMES, _CHUNK_BYTES = 1 << 16, 1 << 26


class OpNames(NamedTuple):
    """Names of ranges, divided into names without arguments and arguments.

    Attributes:
        rows: One row per name: ``name`` (row number in ``names``), ``sequence_number``, ``sizes`` (row number in
            ``sizes``). The last two are null if the name does not contain them.
        names: ``name`` (String): the names without arguments, and ``looks_like_op`` (whether it has the form of the
            name of an op). Some rows may be equal.
        sizes: The parts of names that begin with ", sizes = [" (String), without the ids of inputs. Some may be equal.
    """

    rows: pl.DataFrame
    names: pl.DataFrame
    sizes: pl.Series

    @classmethod
    def parse(cls, texts: pl.Series) -> Self:
        """Divide distinct names of ranges (Categorical or String, without nulls)."""
        from tracekit.native.arrays import ArraySandbox

        idle: list[ArraySandbox] = []

        def parse_chunk(chunk: pl.Series) -> OpNames:
            sandbox = idle.pop() if idle else ArraySandbox(PROGRAM)
            part = _parse_chunk(sandbox, chunk)
            idle.append(sandbox)
            return part

        parts = list(map_in_order(parse_chunk, _iterate_chunks(texts)))
        counts = np.cumsum([(0, 0), *((len(part.names), len(part.sizes)) for part in parts)], axis=0)
        rows = [
            part.rows.with_columns(pl.col("name") + int(first[0]), pl.col("sizes") + int(first[1]))
            for part, first in zip(parts, counts, strict=False)
        ]
        return cls(pl.concat(rows), pl.concat([p.names for p in parts]), pl.concat([p.sizes for p in parts]))

    def gather_input_shapes(self) -> pl.Series:
        """Return the input shapes in each name, as JSON (Categorical), or null if the name contains none."""
        shapes = self.sizes.str.extract(_SHAPES).str.replace_all(" ", "").cast(pl.Categorical)
        return shapes.gather(self.rows["sizes"])


def _iterate_chunks(texts: pl.Series) -> Iterator[pl.Series]:
    """Yield chunks of names as Strings. There is at least one chunk, and a chunk of several names is not too long."""
    for start in range(0, max(len(texts), 1), _CHUNK_NAMES):
        pending = [texts[start : start + _CHUNK_NAMES].cast(pl.String)]
        while pending:
            chunk = pending.pop()
            if len(chunk) > 1 and int(chunk.str.len_bytes().cast(pl.Int64).sum()) > _CHUNK_BYTES:
                half = len(chunk) // 2
                pending += [chunk[half:], chunk[:half]]
            else:
                yield chunk


def _parse_chunk(sandbox: ArraySandbox, texts: pl.Series) -> OpNames:
    """Divide the names of a chunk (String)."""
    rows, slots = len(texts), 1 << (2 * len(texts)).bit_length()
    array: pa.LargeStringArray = texts.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
    _, offsets, data = array.buffers()
    edges = np.frombuffer(offsets, np.int64, rows + 1, 8 * array.offset)
    content = np.frombuffer(data, np.uint8, int(edges[-1] - edges[0]), int(edges[0])) if rows else np.empty(0, np.uint8)
    strings = np.frombuffer(b"".join(_STRINGS), np.uint8)
    views = sandbox.allocate(
        "parse",
        bytes=len(content) + _PADDING,
        edges=rows + 1,
        strings=len(strings) + _PADDING,
        string_edges=len(_STRINGS) + 1,
        **dict.fromkeys(("is_op", "sequence", "name", "sizes"), rows),
        **{f"{d}_{part}": rows for d in _DICTIONARIES for part in ("row", "start", "size")},
        **{f"{d}_table": slots for d in _DICTIONARIES},
    )
    views["bytes"][: len(content)] = content
    views["edges"][:] = edges - edges[0]
    views["strings"][: len(strings)] = strings
    views["string_edges"][:] = np.cumsum([0, *map(len, _STRINGS)])
    for d in _DICTIONARIES:
        views[f"{d}_table"][:] = 0
    sandbox.call("parse", rows=rows, slots=slots, seed=int.from_bytes(os.urandom(4)))
    counts = [sandbox.parameter("parse", name) for name in ("names", "sizes")]

    def cut_strings(name: str, count: int) -> pl.Series:
        row, start, size = (create_series(views[f"{name}_{part}"][:count].copy()) for part in ("row", "start", "size"))
        cut = pl.DataFrame({"text": texts.gather(row).cast(pl.Binary), "start": start, "size": size})
        return cut.select(pl.col("text").bin.slice("start", "size").cast(pl.String).alias(name)).to_series()

    names, sizes = (cut_strings(name, count) for name, count in zip(_DICTIONARIES, counts, strict=True))
    is_op = create_series(views["is_op"][views["name_row"][: counts[0]]].view(np.bool_))
    size_rows = views["sizes"].astype(np.int64)
    size_rows[size_rows == np.iinfo(np.uint32).max] = -1
    return OpNames(
        pl.DataFrame(
            {
                "name": create_series(views["name"].copy()),
                "sequence_number": create_nullable_series(views["sequence"].copy()),
                "sizes": create_nullable_series(size_rows),
            }
        ),
        pl.DataFrame({"name": names, "looks_like_op": is_op}),
        sizes,
    )
