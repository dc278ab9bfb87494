"""Build the call stacks in pickles of PyTorch. Only the name of a source file is stored, not its folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.readers.common.columns import build_number_array, compact_dictionary
from tracekit.readers.common.tries import Trie

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.pickles import CellArray, Int64Array, Mask, Values

_SCRIPT = re.compile(r"\.py$|^<ipython-input")
_LIBRARY = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]|[/\\][Ll]ib[/\\]python\d[.\d]*t?[/\\]|[/\\][Pp]ython3\d+[/\\][Ll]ib[/\\]"
    r"|[/\\]torch[/\\](?:nn|optim|autograd|utils|cuda|distributed|profiler|_\w+|functional\.py)\b"
)
"""Places of other source files: in an installed package, in the library of Python, or in the sources of PyTorch."""
_UNKNOWN = ("", "??")
_ROW_BYTES = 64


class StackIds(NamedTuple):
    """The call stacks of some rows.

    Attributes:
        stack_id: Id of each call stack, or null if it has no frames.
        user_stack_id: Id of the innermost frame of each stack in a file of the program, or null if there is none.
    """

    stack_id: pa.Array
    user_stack_id: pa.Array


@dataclass(frozen=True)
class PickledStacks:
    """The call stacks of a pickle.

    Attributes:
        nodes: Id of the call stack of each distinct list of frames, or 0 if it has no frames.
        users: Id of the innermost frame of each list in a file of the program, or 0 if there is none.
        table: The table ``stacks``.
    """

    nodes: Int64Array
    users: Int64Array
    table: pa.Table

    def get_ids(self, codes: npt.NDArray[np.int32] | Int64Array) -> StackIds:
        """Return the ids of call stacks, from the codes of their lists of frames."""
        return StackIds(*(build_number_array(ids[codes], ids[codes] > 0) for ids in (self.nodes, self.users)))


def build_stacks(values: Values, distinct: CellArray, budget: Budget, unknown: Counter[str]) -> PickledStacks:
    """Return the call stacks of lists of frames.

    Args:
        values: The values of the pickle.
        distinct: Cells of distinct lists of frames, from the innermost to the outermost frame.
        budget: Memory budget for the call stacks.
        unknown: Counter of members with unknown names, to which those of the frames are added.

    Raises:
        Damage: A frame is invalid, or the call stacks exceed the memory budget.
    """
    offsets, frames = values.flatten(distinct, "call stacks")
    budget.check_temporary_memory(len(frames), _ROW_BYTES, "frames of call stacks")
    places, rows = _encode(frames.view(np.int64))
    labels, columns, is_user = _read_frames(values, rows.view(np.uint64), unknown)
    trie = Trie(budget, "frames of call stacks")
    nodes = trie.add_sequences(offsets, labels[places].astype(np.uint32)).astype(np.int64)
    used = trie.labels[1:].astype(np.int64)
    parents = trie.parents.astype(np.int64)
    users = _find_users(parents, np.append(False, is_user[used]))
    table = {
        "stack_id": build_number_array(np.arange(1, trie.count + 1)),
        "parent_id": build_number_array(parents[1:], parents[1:] > 0),
        "depth": build_number_array(trie.depths[1:].astype(np.int32)),
        **{name: column.take(pa.array(used)) for name, column in columns.items()},
    }
    return PickledStacks(nodes, users[nodes], pa.table(table))


def _find_users(parents: Int64Array, is_user: Mask) -> Int64Array:
    """Return the innermost frame of each stack that is in a file of the program, or 0."""
    users = np.where(is_user, np.arange(len(parents)), parents)
    while True:
        following = users[users]
        if (following == users).all():
            return users
        users = following


def _encode(numbers: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the code of each number, and the distinct numbers."""
    encoded = pa.array(numbers).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_numpy()


def _read_frames(
    values: Values, frames: CellArray, unknown: Counter[str]
) -> tuple[Int64Array, dict[str, pa.Array], Mask]:
    """Return the number of each frame, the columns of the distinct frames, and whether they are in the program.

    Frames are distinct if one of their columns differs.
    """
    cells = values.columns(frames, ("name", "filename", "line"), "frames", unknown)
    name_codes, names = _encode(values.find_strings(cells["name"], "name").astype(np.int64))
    file_codes, files = _encode(values.find_strings(cells["filename"], "filename").astype(np.int64))
    symbols = [values.strings.get(n) if n >= 0 else None for n in names.tolist()]
    paths = [values.strings.get(n) if n >= 0 else "" for n in files.tolist()]
    sources = [_locate(path) for path in paths]
    numbers = {source: n for n, source in enumerate(dict.fromkeys(sources))}
    of_file = np.array([numbers[source] for source in sources], np.int64)
    lines, has_line = values.integers(cells["line"], "line")
    lines = np.where(has_line & (lines > 0) & (lines < 1 << 31), lines, 0)
    source_codes = of_file[file_codes] if len(of_file) else file_codes
    pairs, distinct_pairs = _encode(name_codes << 32 | source_codes)
    labels, distinct = _encode(pairs << 32 | lines)
    pair = distinct_pairs[distinct >> 32] if len(distinct) else distinct
    modules = [name or None for name, _ in numbers]
    line = distinct & 0xFFFFFFFF
    columns = {
        "symbol": _build_texts(pair >> 32, symbols),
        "module": _build_texts(pair & 0xFFFFFFFF, modules),
        "line": build_number_array(line.astype(np.int32), line > 0),
    }
    is_user = np.array([*(of_program for _, of_program in numbers), False])
    return labels, columns, is_user[pair & 0xFFFFFFFF]


def _build_texts(codes: Int64Array, texts: Sequence[str | None]) -> pa.DictionaryArray:
    return compact_dictionary(pa.array(codes), pa.array(texts, pa.string()))


def _locate(path: str) -> tuple[str, bool]:
    """Return the name of a source file, and whether it is a Python file of the program."""
    if path in _UNKNOWN:
        return "", False
    name = re.split(r"[/\\]", path)[-1]
    return name, _SCRIPT.search(name) is not None and _LIBRARY.search(path) is None
