"""Store each distinct call stack of samples and calls once, as a node of a tree.

The parent of a stack is the stack without its innermost frame, which is the stack of its caller. The ids of stacks are
counted from 1 in the order in which the stacks first occur: first those of CPU samples, then those of OS runtime calls,
of CUDA API calls, and of Python samples. A parent comes before its children. A stack has the same id in a report and in
its exports.

Read samples of Python threads, which nsys stores as NVTX marks in two NVTX domains.

The payload of a mark holds the call stack of the sample:

1. the number of the thread in the interpreter (8 bytes),
2. the state of the thread, and the number of frames (4 bytes each),
3. the frames from the innermost one to the outermost one (24 bytes each).

A frame consists of the string ids of its function and of its file (8 bytes each), its line (4 bytes), and 4 unused
bytes.
"""

from __future__ import annotations

import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common import columns as col
from tracekit.readers.common.builders import TableBuilder
from tracekit.readers.common.damage import convert_damage
from tracekit.readers.common.protobuf.decoding import extract_strings
from tracekit.readers.common.tries import Trie
from tracekit.readers.nsys import ids, nvtx
from tracekit.readers.nsys.lookups import create_source_request
from tracekit.readers.nsys.paths import extract_file_names
from tracekit.readers.nsys.tables import FRAMES, ROWID, ColumnsRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracekit.readers.common.tries import Int64Array
    from tracekit.readers.nsys.lookups import Lookups

    Batch = dict[str, pa.Array]
    Domains = Mapping[tuple[int, int], int]
    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.tries import UInt32Array
    from tracekit.readers.nsys.lookups import Resolver
    from tracekit.readers.nsys.tables import StackTables

PYTHON_TABLE = "python_samples"
SCHEMAS = "NVTX_PAYLOAD_SCHEMAS"
"""Source table of payload schemas, some of which have the names of the domains. A file without it has no samples."""
PAYLOAD, KIND = "binaryData", "kind"
KINDS = {"Python Periodic Sampling": "periodic", "Python Backtrace on CUDA": "cuda"}
"""Kind of the Python samples in each NVTX domain that contains them, by domain name."""
_STATES = col.StringTable.from_mapping(
    {0xFFFFA500: "Running", 0xFFBBD6CF: "Blocking Wait", 0xFFC60D1B: "Uninterruptible"}
)
"""State of the thread by the color of the mark. The payload also contains the state, but most exports lack
payloads."""
_SAMPLE = {
    **dict.fromkeys(("python_sample_id", "timestamp_ns", "process_id", "thread_id"), pa.int64()),
    **dict.fromkeys(("kind", "thread_state"), col.DICTIONARY),
}
_EVENT = (ROWID, "start", "globalTid", "color")
_PAYLOAD_PATTERN = r"^[0-9]+:[0-9a-f]+$"
_WORD_DIGITS, _HEAD_WORDS, _FRAME_WORDS = 16, 2, 3
TABLE = "stacks"
_SYMBOLS = ("symbol", "module")
_FLAGS = ("kernelMode", "thumbCode", "unresolved", "specialEntry")
_UNWIND_METHOD, _ADDRESS = "unwindMethod", "originalIP"
_LINE = "line"
_FRAME = (*_SYMBOLS, *_FLAGS, _ADDRESS, _UNWIND_METHOD, _LINE)
CHAIN_TABLES = {
    "SAMPLING_CALLCHAINS": _FRAME[:-1],
    "OSRT_CALLCHAINS": _FRAME[:-1],
    "CUDA_CALLCHAINS": (*_SYMBOLS, "unresolved", _ADDRESS),
}
"""Source tables of call chains, in the order in which stacks are numbered, and the columns of their frames."""
_CHAIN_TABLE_OF = {
    "cpu_samples": "SAMPLING_CALLCHAINS",
    "osrt_calls": "OSRT_CALLCHAINS",
    "api_calls": "CUDA_CALLCHAINS",
    PYTHON_TABLE: nvtx.SOURCE_TABLE,
}
"""Source table of the call chains of each declared table."""
MAX_KNOWN_BYTES = 32 << 20
"""Maximum size of the encoded stacks that are cached in order to find equal stacks in later batches."""
_MISSING, _UNKNOWN = np.uint32(0xFFFFFFFF), 1 << 16
_WORDS = 5
_LINE_BIT = 31


class PythonFrames(NamedTuple):
    """The frames of several call stacks, each from the innermost frame to the outermost one.

    Attributes:
        edges: Index of the first frame of each stack, followed by the total number of frames.
        columns: Columns with one row per frame: the string ids of its function (``symbol``) and of its file
            (``module``), and its line number (``line``).
    """

    edges: Int64Array
    columns: dict[str, pa.Array]


def find_python_domains(lookups: Lookups) -> Domains:
    """Return the kind of the Python samples in each NVTX domain that contains them, by process id and domain id.

    A kind is an index of ``KINDS``. If no payload schema of the file has the name of a domain in ``KINDS``, no events
    are read, and the result is empty.
    """
    if "name" not in lookups.tables.columns.get(SCHEMAS, ()):
        return {}
    if not set(KINDS).intersection(lookups.fetch(SCHEMAS, ["name"])["name"].to_pylist()):
        return {}
    for definition in nvtx.list_unread_name_definitions(lookups, {"nvtx_marks": ["domain"]}):
        nvtx.store_defined_names(lookups, definition, pa.table(lookups.read_requests([definition.create_request()])[0]))
    kinds = list(KINDS)
    defined = ((key.split("/"), name) for key, name in lookups.defined_names["domain"].items())
    return {(int(process), int(domain)): kinds.index(name) for (process, domain), name in defined if name in KINDS}


def create_python_samples_request(lookups: Lookups, domains: Domains) -> ColumnsRequest[Batch]:
    """Return the request that reads the times, threads and kinds of Python samples."""
    return _create_marks_request(lookups, domains, _EVENT)


def create_python_stacks_request(lookups: Lookups, domains: Domains) -> ColumnsRequest[Batch]:
    """Return the request that reads the row numbers and the dictionary-encoded payloads of Python samples."""

    def encode_payloads(batch: Batch) -> Batch:
        return batch | {PAYLOAD: batch[PAYLOAD].dictionary_encode()}

    return _create_marks_request(lookups, domains, (ROWID, "globalTid", PAYLOAD), encode_payloads)


def _create_marks_request(
    lookups: Lookups, domains: Domains, columns: Sequence[str], convert: Callable[[Batch], Batch] = dict
) -> ColumnsRequest[Batch]:
    """Return the request that reads columns of the NVTX marks in the given domains, and the kind of each mark."""
    types = {c: pa.string() if c == PAYLOAD else pa.int64() for c in (*columns, "domainId")}

    def convert_marks(marks: pa.Table) -> Batch:
        processes, of_marks = (
            ids.extract_process_ids(marks["globalTid"]),
            nvtx.resolve_domain_ids(lookups, PYTHON_TABLE, marks),
        )
        numbers, pairs = col.encode_rows(processes, of_marks)
        kinds = [None if None in pair else domains.get(pair) for pair in pairs]  # type: ignore[arg-type]
        kind = pa.array(kinds, pa.int32()).take(numbers)
        keep = kind.is_valid()
        return convert({c: col.concatenate_chunks(marks[c]).filter(keep) for c in columns} | {KIND: kind.filter(keep)})

    return ColumnsRequest(nvtx.SOURCE_TABLE, types, nvtx.FILTERS["nvtx_marks"], convert_marks)


def decode_frames(payloads: pa.Array) -> PythonFrames:
    """Decode the call stacks in payloads. A payload that is not a valid call stack has no frames.

    Args:
        payloads: Payloads that are formatted as a schema id, a colon and hexadecimal digits.
    """
    sizes = np.zeros(len(payloads), np.int64)
    words = np.zeros(0, np.uint64)
    colons = pc.find_substring(payloads, ":").to_numpy(zero_copy_only=False).astype(np.int64)
    digits = pc.binary_length(payloads).to_numpy(zero_copy_only=False).astype(np.int64) - colons - 1
    count, rest = np.divmod(digits - _WORD_DIGITS * _HEAD_WORDS, _WORD_DIGITS * _FRAME_WORDS)
    formed = (
        pc.match_substring_regex(payloads, _PAYLOAD_PATTERN).to_numpy(zero_copy_only=False) & (rest == 0) & (count >= 0)
    )
    rows = np.flatnonzero(formed)
    if len(rows):
        _, offsets, data = payloads.buffers()
        starts = np.frombuffer(offsets, np.int32)[payloads.offset :][: len(payloads)].astype(np.int64) + colons + 1
        edges = np.stack((starts[rows], starts[rows] + digits[rows]), axis=1).reshape(-1)
        text = extract_strings(np.frombuffer(data, np.uint8), edges)
        words = np.frombuffer(binascii.unhexlify(text.buffers()[2][: int(digits[rows].sum())]), "<u8")
        heads = (np.cumsum(digits[rows]) - digits[rows]) // _WORD_DIGITS
        rows, heads = (x[words[heads + 1] >> np.uint64(32) == count[rows].astype(np.uint64)] for x in (rows, heads))
        sizes[rows] = count[rows]
        at = np.repeat(heads + _HEAD_WORDS, sizes[rows])
    else:
        at = np.zeros(0, np.int64)
    ends = np.cumsum(sizes)
    nth = np.arange(len(at)) - np.repeat(ends - sizes, sizes)
    at = at + _FRAME_WORDS * nth
    columns = {
        "symbol": words[at].view(np.int64),
        "module": words[at + 1].view(np.int64),
        "line": words[at + 2].astype(np.uint32).view(np.int32).astype(np.int64),
    }
    return PythonFrames(
        np.concatenate(([0], ends)), {c: col.build_number_array(values) for c, values in columns.items()}
    )


def read_python_samples(lookups: Lookups, domains: Domains) -> Batch:
    """Return all columns of the declared table ``python_samples`` except ``stack_id``, with one row per sample.

    The ids of the samples are the row numbers of their marks in the source table.
    """
    if not domains:
        return {c: pa.array([], kind) for c, kind in _SAMPLE.items()}
    (raw,) = lookups.read_requests([create_python_samples_request(lookups, domains)])
    threads = raw["globalTid"]
    return {
        "python_sample_id": raw[ROWID],
        "timestamp_ns": raw["start"],
        "process_id": ids.extract_process_ids(threads),
        "thread_id": ids.extract_thread_ids(threads),
        "kind": col.compact_dictionary(raw[KIND], pa.array(KINDS.values(), pa.string())),
        "thread_state": _STATES.look_up_strings_of_ids(raw["color"])[0],
    }


def create_chain_id_resolver(column: str) -> Resolver:
    """Return a resolver that copies the call chain numbers in a source column to the column ``stack_id``.

    ``replace_chain_ids_with_stack_ids`` later replaces the numbers with stack ids.
    """
    return (column,), lambda _lookups, _table, source_rows: source_rows[column]


RESOLVERS: dict[str, dict[str, Resolver]] = {
    "cpu_samples": {"stack_id": create_chain_id_resolver("id")},
    "osrt_calls": {"stack_id": create_chain_id_resolver("callchainId")},
    "api_calls": {"stack_id": create_chain_id_resolver("callchainId")},
}


class Chains(NamedTuple):
    """The call chains of one source table. A call chain is a call stack with a number that nsys assigned.

    Attributes:
        ids: Number that identifies each call chain in the source table, ascending.
        stacks: Stack id of each call chain, or 0 if it has no frames.
    """

    ids: Int64Array
    stacks: UInt32Array


@dataclass(frozen=True)
class Stacks:
    """All call stacks of a file.

    Attributes:
        parents: Id of the parent of each stack, in the order of the stack ids, or 0 for a stack of one frame.
        depths: Number of frames of each stack.
        frames: Row number in ``frame_columns``, counted from 0, of the innermost frame of each stack.
        frame_columns: Columns of integers with one row per distinct frame.
        chains: Numbers and stack ids of the call chains, by source table.
    """

    parents: UInt32Array
    depths: UInt32Array
    frames: UInt32Array
    frame_columns: pa.Table
    chains: Mapping[str, Chains]

    def __len__(self) -> int:
        return len(self.parents)

    def build_columns(self, lookups: Lookups, names: Sequence[str]) -> dict[str, pa.Array]:
        """Build the requested columns of the declared table ``stacks``."""
        return {name: _COLUMNS[name](self, lookups) for name in names}

    def look_up_stack_ids(self, table: str, chain_ids: pa.Array | pa.ChunkedArray) -> pa.Array:
        """Return the id in the declared table ``stacks`` for the number of each call chain.

        Args:
            table: Declared table whose rows refer to the call chains.
            chain_ids: Number of the call chain of each row, as recorded in the file.

        Returns:
            One id per row, or null if the file does not contain the call chain.
        """
        known = self.chains.get(_CHAIN_TABLE_OF[table])
        numbers = col.concatenate_chunks(chain_ids)
        if known is None or not len(known.ids):
            return pa.nulls(len(numbers), pa.int64())
        values = np.asarray(pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False), np.int64)
        if np.array_equal(values, known.ids):
            return col.build_number_array(known.stacks.astype(np.int64))
        if known.ids[-1] - known.ids[0] == len(known.ids) - 1:
            rows = values - known.ids[0]
        else:
            rows = np.searchsorted(known.ids, values)
        rows = np.clip(rows, 0, len(known.ids) - 1)
        valid = known.ids[rows] == values
        if numbers.null_count:
            valid &= numbers.is_valid().to_numpy(zero_copy_only=False)
        valid &= known.stacks[rows] > 0
        return col.build_number_array(known.stacks[rows].astype(np.int64), None if valid.all() else valid)


def replace_chain_ids_with_stack_ids(
    stacks: Stacks | None, table: str, columns: dict[str, pa.Array]
) -> dict[str, pa.Array]:
    """Replace the call chain numbers in the column ``stack_id`` with stack ids, and return all columns."""
    if stacks is None or table not in RESOLVERS or "stack_id" not in columns:
        return columns
    return {c: stacks.look_up_stack_ids(table, data) if c == "stack_id" else data for c, data in columns.items()}


class StackBuilder:
    """A builder of all call stacks of a file.

    Attributes:
        collectors: Collectors of batches, one for each source table of call chains in the file.
    """

    def __init__(self, lookups: Lookups, python_domains: Domains) -> None:
        """Create a builder.

        Args:
            lookups: The open file.
            python_domains: NVTX domains that contain Python samples, with the kind of the samples.
        """
        self._lookups = lookups
        budget = lookups.create_memory_budget()
        self.frames = _FrameBuilder(budget)
        tables = [table for table in CHAIN_TABLES if table in lookups.tables.columns]
        self.collectors: list[_StackCollector | _FrameRowCollector | _PythonCollector] = [
            (_StackCollector if FRAMES in lookups.tables.columns[table] else _FrameRowCollector)(
                table, self.frames, Trie(budget, "frames of call stacks"), lookups
            )
            for table in tables
        ]
        if python_domains:
            request = create_python_stacks_request(lookups, python_domains)
            self.collectors.append(
                _PythonCollector(request, self.frames, Trie(budget, "frames of call stacks"), lookups)
            )

    def finish(self) -> Stacks:
        """Return the call stacks of all source tables, numbered in the order of ``collectors``."""
        whole: Trie | None = None
        chains: dict[str, Chains] = {}
        for collector in self.collectors:
            with convert_damage(self._lookups.path, collector.table):
                read = collector.get_call_chains()
                if whole is None:
                    whole = collector.trie
                    chains[collector.table] = read
                elif collector.trie.count:
                    chains[collector.table] = Chains(read.ids, whole.merge(collector.trie)[read.stacks])
        if whole is None:
            empty = np.zeros(0, np.uint32)
            return Stacks(empty, empty, empty, self.frames.finish(), {})
        return Stacks(whole.parents[1:], whole.depths[1:], whole.labels[1:], self.frames.finish(), chains)


class _FrameBuilder:
    """A builder of the distinct frames of all stacks. Frames are numbered from 0."""

    def __init__(self, budget: Budget) -> None:
        self._trie = Trie(budget, "distinct frames of call stacks")
        self._numbers = np.zeros(1, np.int64)
        self._chunks: list[pa.Table] = []
        self.count = 0

    def add_frames(self, columns: Mapping[str, pa.Array]) -> UInt32Array:
        """Add frames, and return the number that identifies each frame. Equal frames have the same number.

        Args:
            columns: Columns of integers. Missing columns are null.
        """
        rows = len(next(iter(columns.values())))
        nodes = self._trie.add_sequences(
            np.arange(0, _WORDS * rows + 1, _WORDS), _encode_frames_as_words(columns, rows)
        ).astype(np.int64)
        if len(self._numbers) <= self._trie.count:
            grown = np.zeros(2 * self._trie.count + 1, np.int64)
            grown[: len(self._numbers)] = self._numbers
            self._numbers = grown
        unnumbered = np.flatnonzero(self._numbers[nodes] == 0)
        new = unnumbered[np.sort(np.unique(nodes[unnumbered], return_index=True)[1])]
        self._numbers[nodes[new]] = np.arange(self.count + 1, self.count + 1 + len(new))
        self.count += len(new)
        picked = col.build_number_array(new)
        self._chunks.append(
            pa.table({c: columns[c].take(picked) if c in columns else pa.nulls(len(new), pa.int64()) for c in _FRAME})
        )
        return (self._numbers[nodes] - 1).astype(np.uint32)

    def finish(self) -> pa.Table:
        """Return the columns of the distinct frames."""
        return pa.concat_tables(self._chunks or [pa.table({c: pa.nulls(0, pa.int64()) for c in _FRAME})])


def _encode_frames_as_words(columns: Mapping[str, pa.Array], row_count: int) -> UInt32Array:
    """Return five 32-bit numbers per frame, in frame order. Equal frames have equal numbers."""
    words = np.zeros((row_count, _WORDS), np.uint32)
    flags = np.zeros(row_count, np.int64)
    for name in columns:
        values, valid = _split_values_and_validity(columns[name])
        if name in _SYMBOLS:
            known = valid & (values >= 0) & (values < int(_MISSING))
            words[:, _SYMBOLS.index(name)] = np.where(known, values, _MISSING)
        elif name == _ADDRESS:
            words[:, 2:4] = np.where(valid, values, 0).view(np.uint32).reshape(row_count, 2)
            flags |= valid.astype(np.int64)
        elif name == _LINE:
            words[:, 2] = np.where(valid, values, words[:, 2]).astype(np.uint32)
            flags |= valid.astype(np.int64) << _LINE_BIT
        elif name == _UNWIND_METHOD:
            known = valid & (values >= 0) & (values < _UNKNOWN)
            flags |= np.where(known, values + 1, 0) << (1 + 2 * len(_FLAGS))
        else:
            flags |= np.where(valid, 1 + (values != 0), 0) << (1 + 2 * _FLAGS.index(name))
    words[:, 4] = flags
    return words.reshape(-1)


def _split_values_and_validity(column: pa.Array) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Return the values of an integer column, with 0 for null, and a mask of the values that are not null."""
    values = np.asarray(pc.fill_null(column, 0).to_numpy(zero_copy_only=False), np.int64)
    return values, np.asarray(column.is_valid().to_numpy(zero_copy_only=False))


class _StackCollector:
    """A collector of call chains from a source table whose rows are whole stacks, as in reports."""

    def __init__(self, table: str, frames: _FrameBuilder, trie: Trie, lookups: Lookups) -> None:
        self.table = table
        self.frames = frames
        self.trie = trie
        self._path = lookups.path
        self._tables = cast("StackTables", lookups.tables)
        self._known = pa.array([], pa.binary())
        self._known_nodes = np.zeros(1, np.uint32)
        self._ids: list[Int64Array] = [np.zeros(0, np.int64)]
        self._stacks: list[UInt32Array] = [np.zeros(0, np.uint32)]

    @property
    def request(self) -> ColumnsRequest[Batch]:
        """The request that reads the call chains from the source table."""
        columns = {"id": pa.int64(), FRAMES: pa.dictionary(pa.int32(), pa.binary())}
        return ColumnsRequest(
            self.table, columns, None, lambda raw: dict(zip(raw.column_names, raw.columns, strict=True))
        )

    def append(self, batch: Batch) -> None:
        """Add the call chains of a batch."""
        ids, column = (col.concatenate_chunks(batch[c]) for c in ("id", FRAMES))
        rows = column.is_valid().to_numpy(zero_copy_only=False)
        if not rows.any():
            return
        known = pc.index_in(column.dictionary, self._known)
        nodes = self._known_nodes[known.fill_null(0).to_numpy()]
        new = np.flatnonzero(known.is_null().to_numpy(zero_copy_only=False))
        if len(new):
            added = column.dictionary.take(col.build_number_array(new))
            nodes[new] = self._add_stacks(added)
            self._cache_nodes_of_stacks(added, nodes[new])
        self._stacks.append(nodes[column.indices.drop_null().to_numpy()])
        self._ids.append(ids.to_numpy(zero_copy_only=False)[rows].astype(np.int64))

    def _add_stacks(self, encoded_stacks: pa.BinaryArray) -> UInt32Array:
        """Add encoded stacks to the trie, and return the node of each stack."""
        with convert_damage(self._path, self.table):
            stacks = self._tables.decode_stacks(self.table, encoded_stacks)
            frames = stacks.values
            numbers = self.frames.add_frames({c: frames.dictionary.field(c) for c in CHAIN_TABLES[self.table]})
            return self.trie.add_sequences(
                stacks.offsets.to_numpy().astype(np.int64), numbers[frames.indices.to_numpy()]
            )

    def _cache_nodes_of_stacks(self, encoded_stacks: pa.BinaryArray, nodes: UInt32Array) -> None:
        """Cache the nodes of encoded stacks. Equal stacks in later batches are not decoded again."""
        if self._known.nbytes + encoded_stacks.nbytes <= MAX_KNOWN_BYTES:
            self._known = pa.concat_arrays([self._known, encoded_stacks])
            self._known_nodes = np.concatenate((self._known_nodes[: len(self._known) - len(encoded_stacks)], nodes))

    def get_call_chains(self) -> Chains:
        """Return the call chains of all batches."""
        return Chains(np.concatenate(self._ids), np.concatenate(self._stacks))


class _FrameRowCollector:
    """A collector of call chains from a source table whose rows are single frames, as in exports."""

    def __init__(self, table: str, frames: _FrameBuilder, trie: Trie, lookups: Lookups) -> None:
        self.table = table
        self.frames = frames
        self.trie = trie
        self._rows = TableBuilder(lookups.tables.compute_max_rows(table))

    @property
    def request(self) -> ColumnsRequest[Batch]:
        """The request that reads the frames from the source table."""
        return create_source_request(self.table, ["id", "stackDepth", *CHAIN_TABLES[self.table]])

    def append(self, batch: Batch) -> None:
        """Add the frames of a batch."""
        self._rows.append(batch)

    def get_call_chains(self) -> Chains:
        """Return the call chains of all batches."""
        columns = {name: col.concatenate_chunks(data) for name, data in self._rows.finish().items()}
        ids, depths = (
            _split_values_and_validity(columns.pop("id"))[0],
            _split_values_and_validity(columns.pop("stackDepth"))[0],
        )
        same = np.diff(ids) == 0
        if ((np.diff(ids) < 0) | (same & (np.diff(depths) < 0))).any():
            order = np.lexsort((depths, ids))
            ids, same = ids[order], np.diff(ids[order]) == 0
            columns = {name: data.take(col.build_number_array(order)) for name, data in columns.items()}
        numbers = self.frames.add_frames(columns)
        edges = np.concatenate(([0] if len(ids) else [], np.flatnonzero(~same) + 1, [len(ids)])).astype(np.int64)
        return Chains(ids[edges[:-1]], self.trie.add_sequences(edges, numbers))


class _PythonCollector:
    """A collector of the call stacks of Python samples, which are payloads of NVTX marks."""

    def __init__(self, request: ColumnsRequest[Batch], frames: _FrameBuilder, trie: Trie, lookups: Lookups) -> None:
        self.table = request.table
        self.request = request
        self.frames = frames
        self.trie = trie
        self._path = lookups.path
        self._ids: list[Int64Array] = [np.zeros(0, np.int64)]
        self._stacks: list[UInt32Array] = [np.zeros(0, np.uint32)]

    def append(self, batch: Batch) -> None:
        """Add the call stacks of a batch of Python samples."""
        rows, payloads = batch[ROWID], batch[PAYLOAD]
        if payloads.null_count == len(payloads):
            return
        with convert_damage(self._path, self.table):
            edges, columns = decode_frames(payloads.dictionary)
            numbers = self.frames.add_frames(columns) if edges[-1] else np.zeros(0, np.uint32)
            nodes = self.trie.add_sequences(edges, numbers)
        valid = payloads.is_valid()
        self._stacks.append(nodes[payloads.indices.filter(valid).to_numpy()])
        self._ids.append(rows.filter(valid).to_numpy())

    def get_call_chains(self) -> Chains:
        """Return the call stacks of all batches, identified by the row numbers of the NVTX marks."""
        return Chains(np.concatenate(self._ids), np.concatenate(self._stacks))


def _find_innermost_frame_names(stacks: Stacks, frame_names: pa.DictionaryArray) -> pa.DictionaryArray:
    """Return the name of the innermost frame of each stack, given the names of all frames."""
    return col.compact_dictionary(
        frame_names.indices.take(col.build_number_array(stacks.frames)), frame_names.dictionary
    )


def _resolve_symbol_names(stacks: Stacks, lookups: Lookups) -> pa.Array:
    names = lookups.look_up_strings(TABLE, "symbol", stacks.frame_columns["symbol"], lookups.strings)
    return _find_innermost_frame_names(
        stacks, pa.DictionaryArray.from_arrays(names.indices, _unescape_names(names.dictionary))
    )


def _unescape_names(names: pa.Array) -> pa.Array:
    """Replace ``&lt;`` and ``&gt;`` in names, such as ``&lt;module&gt;``, with angle brackets."""
    return pc.replace_substring(pc.replace_substring(names, "&lt;", "<"), "&gt;", ">")


def _resolve_module_names(stacks: Stacks, lookups: Lookups) -> pa.Array:
    """Return the module name of the innermost frame of each stack, without the folder, which may be private."""
    paths = lookups.look_up_strings(TABLE, "module", stacks.frame_columns["module"], lookups.strings)
    names = _unescape_names(extract_file_names(paths.dictionary))
    return _find_innermost_frame_names(stacks, pa.DictionaryArray.from_arrays(paths.indices, names))


def _create_flag_resolver(frame_column: str) -> Callable[[Stacks, Lookups], pa.Array]:
    """Return a function that computes whether a flag is set in the innermost frame of each stack."""

    def resolve(stacks: Stacks, _lookups: Lookups) -> pa.Array:
        return pc.not_equal(col.concatenate_chunks(stacks.frame_columns[frame_column]), 0).take(
            col.build_number_array(stacks.frames)
        )

    return resolve


def _create_number_resolver(frame_column: str) -> Callable[[Stacks, Lookups], pa.Array]:
    """Return a function that computes the value of a frame column in the innermost frame of each stack."""

    def resolve(stacks: Stacks, _lookups: Lookups) -> pa.Array:
        return col.concatenate_chunks(stacks.frame_columns[frame_column]).take(col.build_number_array(stacks.frames))

    return resolve


def _resolve_unwind_method_names(stacks: Stacks, lookups: Lookups) -> pa.Array:
    labels = lookups.read_enum_labels("ENUM_STACK_UNWIND_METHOD")
    return _find_innermost_frame_names(
        stacks, lookups.look_up_strings(TABLE, "unwind_method", stacks.frame_columns[_UNWIND_METHOD], labels)
    )


def _resolve_parent_ids(stacks: Stacks, _lookups: Lookups) -> pa.Array:
    return col.build_number_array(stacks.parents.astype(np.int64), stacks.parents > 0)


_COLUMNS: dict[str, Callable[[Stacks, Lookups], pa.Array]] = {
    "stack_id": lambda stacks, _: col.build_number_array(np.arange(1, len(stacks) + 1)),
    "parent_id": _resolve_parent_ids,
    "depth": lambda stacks, _: col.build_number_array(stacks.depths.astype(np.int32)),
    "symbol": _resolve_symbol_names,
    "module": _resolve_module_names,
    "kernel_mode": _create_flag_resolver("kernelMode"),
    "thumb_code": _create_flag_resolver("thumbCode"),
    "unresolved": _create_flag_resolver("unresolved"),
    "special_entry": _create_flag_resolver("specialEntry"),
    "original_ip": _create_number_resolver(_ADDRESS),
    "unwind_method": _resolve_unwind_method_names,
    "line": _create_number_resolver(_LINE),
}
