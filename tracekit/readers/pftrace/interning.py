"""Read the interned data and the descriptors of tracks, processes and threads from packets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.readers.common.builders import TableBuilder
from tracekit.readers.common.columns import build_number_array
from tracekit.readers.common.protobuf.decoding import decode, find_occurrences
from tracekit.readers.common.protobuf.fields import read_integers, read_spans
from tracekit.readers.pftrace.packets import DESCRIPTOR, INTERNED, METADATA, PROCESS, PROCESS_TREE, THREAD
from tracekit.readers.pftrace.strings import NO_STRING, InternedTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.protobuf.decoding import Buffer, Field, Int64Array
    from tracekit.readers.pftrace.packets import DecodedPackets
    from tracekit.readers.pftrace.strings import TextPool

CATEGORIES, EVENT_NAMES, ANNOTATION_NAMES, STRING_VALUES = 1, 2, 3, 29
_TEXT_TABLES = (CATEGORIES, EVENT_NAMES, ANNOTATION_NAMES, STRING_VALUES)
CONTEXTS, SPECIFICATIONS = 23, 24
_IID, _TEXT, _DESCRIPTION, _CATEGORY, _CONTEXT_PID = 1, 2, 3, 4, 2
_ENTRY_BYTES, _TRACK_BYTES, _NAME_BYTES = 48, 256, 128
_UUID, _NAME, _PROCESS, _THREAD, _PARENT, _COUNTER, _STATIC_NAME, _ATRACE_NAME, _ABOUT = 1, 2, 3, 4, 5, 8, 10, 13, 14
_PID, _TID, _TEXT_OF_THREAD, _TEXT_OF_PROCESS, _COMMAND = 1, 2, 5, 6, 2
_UNIT_MULTIPLIER, _IS_INCREMENTAL = 4, 5
_PROCESSES, _THREADS, _TREE_COMMAND, _TREE_GROUP, _TREE_NAME = 1, 2, 3, 3, 2
_FEW_ROWS = 1 << 10
_MAX_METADATA = 1000


class InternedData:
    """The interned data of all sequences.

    Attributes:
        texts: The strings of each kind, by the number of the field that contains them.
        contexts: Process of each context of a GPU.
        stage_names: Names of the stages and queues of a GPU.
    """

    def __init__(self, pool: TextPool, budget: Budget) -> None:
        self.texts = {number: InternedTable() for number in _TEXT_TABLES}
        self.contexts = InternedTable()
        self.stage_names = InternedTable()
        self._pool = pool
        self._budget = budget

    def add(self, batch: DecodedPackets) -> None:
        """Add the interned data of a batch of packets.

        Raises:
            Damage: An entry is invalid, or the entries exceed the memory budget.
        """
        rows, starts, stops = batch.find(INTERNED)
        if not len(rows):
            return
        states = batch.states[rows]
        tables = (*_TEXT_TABLES, CONTEXTS, SPECIFICATIONS)
        for number, parts in zip(tables, find_occurrences(batch.buffer, starts, stops, tables), strict=True):
            self._budget.reserve(len(parts), _ENTRY_BYTES, "interned strings")
            fields = decode(batch.buffer, parts.starts, parts.stops, {_IID, _TEXT})
            ids, has_id = read_integers(fields, _IID, len(parts))
            of_state = states[parts.rows]
            if number == CONTEXTS:
                values, has_value = read_integers(fields, _CONTEXT_PID, len(parts))
                table = self.contexts
            else:
                values, has_value = self._add_texts(batch.buffer, fields, len(parts))
                table = self.stage_names if number == SPECIFICATIONS else self.texts[number]
            chosen = has_id & has_value
            table.add(of_state[chosen], ids[chosen], values[chosen])

    def _add_texts(self, buffer: Buffer, fields: Mapping[int, Field], rows: int) -> tuple[Int64Array, np.ndarray]:
        codes = read_text_codes(self._pool, buffer, fields, _TEXT, rows)
        return codes, codes != NO_STRING


class Descriptors:
    """The descriptors of tracks, and the names of processes and threads that packets state.

    Attributes:
        metadata: Metadata of the file, by name.
        tracks: Builder with one row per descriptor of a track: its uuid, that of its parent, the ids and names of its
            process and thread, the attributes of a counter and a description.
        names: Builder with one row per other name of a process or thread.
        threads: Process and thread of each sequence whose events state no track.
    """

    def __init__(self, pool: TextPool, budget: Budget) -> None:
        self.metadata: dict[str, str] = {}
        self.tracks = TableBuilder(_FEW_ROWS)
        self.names = TableBuilder(_FEW_ROWS)
        self.threads: dict[int, tuple[int, int]] = {}
        self._pool = pool
        self._budget = budget

    def add(self, batch: DecodedPackets) -> None:
        """Add the descriptors in a batch of packets.

        Raises:
            Damage: A descriptor is invalid, or the descriptors exceed the memory budget.
        """
        self._add_metadata(batch)
        rows, starts, stops = batch.find(DESCRIPTOR)
        if len(starts):
            self._budget.reserve(len(starts), _TRACK_BYTES, "descriptors of tracks")
            tracks = self._read_tracks(batch.buffer, starts, stops)
            self.tracks.append(tracks)
            self._add_threads(batch.sequences[rows], tracks["thread_pid"], tracks["thread_tid"])
        self._add_process_trees(batch)
        for number in (PROCESS, THREAD):
            rows, starts, stops = batch.find(number)
            if len(rows):
                decoded = self._read_owner(batch.buffer, starts, stops, is_thread=number == THREAD)
                self._append_names(*decoded)
                if number == THREAD:
                    self._add_threads(batch.sequences[rows], *map(pa.array, decoded[:2]))

    def _add_threads(self, sequences: Int64Array, pids: pa.Array, tids: pa.Array) -> None:
        """Store the last thread that each sequence describes."""
        chosen = np.flatnonzero(tids.is_valid().to_numpy(zero_copy_only=False))
        ids = (column.take(build_number_array(chosen)).to_pylist() for column in (pids, tids))
        self.threads |= dict(zip(sequences[chosen].tolist(), zip(*ids, strict=True), strict=True))

    def _add_metadata(self, batch: DecodedPackets) -> None:
        _, starts, stops = batch.find(METADATA)
        if not len(starts) or len(self.metadata) >= _MAX_METADATA:
            return
        (entries,) = find_occurrences(batch.buffer, starts, stops, (2,), 1 << 16)
        fields = decode(batch.buffer, entries.starts, entries.stops, {1, 2})
        names, values = (read_text_codes(self._pool, batch.buffer, fields, n, len(entries)) for n in (1, 2))
        has_both = (names != NO_STRING) & (values != NO_STRING)
        texts = (self._pool.get_texts(codes[has_both].tolist()) for codes in (names, values))
        self.metadata |= dict(zip(*texts, strict=True))

    def _read_tracks(self, buffer: Buffer, starts: Int64Array, stops: Int64Array) -> dict[str, pa.Array]:
        rows = len(starts)
        numbers = {_UUID, _NAME, _PROCESS, _THREAD, _PARENT, _COUNTER, _STATIC_NAME, _ATRACE_NAME, _ABOUT}
        fields = decode(buffer, starts, stops, numbers)
        parents, has_parent = read_integers(fields, _PARENT, rows)
        names = np.full(rows, NO_STRING, np.int64)
        for number in (_ATRACE_NAME, _STATIC_NAME, _NAME):
            codes = read_text_codes(self._pool, buffer, fields, number, rows)
            names = np.where(codes != NO_STRING, codes, names)
        result = {
            "uuid": build_number_array(read_integers(fields, _UUID, rows)[0]),
            "parent": build_number_array(parents, has_parent),
            "name": build_number_array(names),
            "about": build_number_array(read_text_codes(self._pool, buffer, fields, _ABOUT, rows)),
        }
        for number, prefix in ((_PROCESS, "process"), (_THREAD, "thread")):
            inner_starts, inner_stops, valid = read_spans(fields, number, rows)
            chosen = np.flatnonzero(valid)
            owner = self._read_owner(buffer, inner_starts[chosen], inner_stops[chosen], is_thread=number == _THREAD)
            for column, values in zip(("pid", "tid", "text"), owner, strict=True):
                scattered = np.full(rows, NO_STRING, np.int64)
                scattered[chosen] = values
                result[f"{prefix}_{column}"] = build_number_array(scattered, valid)
        return result | self._read_counters(buffer, fields, rows)

    def _read_owner(
        self, buffer: Buffer, starts: Int64Array, stops: Int64Array, *, is_thread: bool
    ) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return the process ids, thread ids (or -1) and names in descriptors of processes or threads."""
        rows = len(starts)
        text = _TEXT_OF_THREAD if is_thread else _TEXT_OF_PROCESS
        fields = decode(buffer, starts, stops, {_PID, _TID, text} if is_thread else {_PID, text})
        tids = read_integers(fields, _TID, rows)[0] if is_thread else np.full(rows, -1, np.int64)
        return read_integers(fields, _PID, rows)[0], tids, read_text_codes(self._pool, buffer, fields, text, rows)

    @staticmethod
    def _read_counters(buffer: Buffer, fields: Mapping[int, Field], rows: int) -> dict[str, pa.Array]:
        starts, stops, valid = read_spans(fields, _COUNTER, rows)
        chosen = np.flatnonzero(valid)
        inner = decode(buffer, starts[chosen], stops[chosen], {_UNIT_MULTIPLIER, _IS_INCREMENTAL})
        multipliers, is_incremental = np.ones(rows, np.int64), np.zeros(rows, np.int64)
        values, has_value = read_integers(inner, _UNIT_MULTIPLIER, len(chosen))
        multipliers[chosen[has_value]] = np.maximum(values[has_value], 1)
        is_incremental[chosen] = read_integers(inner, _IS_INCREMENTAL, len(chosen))[0]
        return {
            "is_counter": build_number_array(valid.astype(np.int64)),
            "multiplier": build_number_array(multipliers),
            "is_incremental": build_number_array(is_incremental),
        }

    def _add_process_trees(self, batch: DecodedPackets) -> None:
        _, starts, stops = batch.find(PROCESS_TREE)
        if not len(starts):
            return
        processes, threads = find_occurrences(batch.buffer, starts, stops, (_PROCESSES, _THREADS))
        fields = decode(batch.buffer, processes.starts, processes.stops, {_PID})
        pids, _ = read_integers(fields, _PID, len(processes))
        commands = self._read_first(batch.buffer, processes.starts, processes.stops, _TREE_COMMAND)
        self._append_names(pids, np.full(len(pids), -1, np.int64), commands)
        fields = decode(batch.buffer, threads.starts, threads.stops, {_PID, _TREE_GROUP, _TREE_NAME})
        tids, _ = read_integers(fields, _PID, len(threads))
        groups, has_group = read_integers(fields, _TREE_GROUP, len(threads))
        names = read_text_codes(self._pool, batch.buffer, fields, _TREE_NAME, len(threads))
        self._append_names(groups[has_group], tids[has_group], names[has_group])

    def _read_first(self, buffer: Buffer, starts: Int64Array, stops: Int64Array, number: int) -> Int64Array:
        """Return the code of the first of the strings in a repeated field of each message."""
        (parts,) = find_occurrences(buffer, starts, stops, (number,))
        is_first = np.append(True, parts.rows[1:] != parts.rows[:-1])[: len(parts)]
        codes = np.full(len(starts), NO_STRING, np.int64)
        codes[parts.rows[is_first]] = self._pool.add(buffer, parts.starts[is_first], parts.stops[is_first])
        return codes

    def _append_names(self, pids: Int64Array, tids: Int64Array, names: Int64Array) -> None:
        chosen = names != NO_STRING
        if chosen.any():
            self._budget.reserve(int(chosen.sum()), _NAME_BYTES, "names of processes and threads")
            columns = {"pid": pids, "tid": tids, "text": names}
            self.names.append({name: build_number_array(values[chosen]) for name, values in columns.items()})


def read_text_codes(pool: TextPool, buffer: Buffer, fields: Mapping[int, Field], number: int, rows: int) -> Int64Array:
    """Return the code of the string in a field of each message, or ``NO_STRING``."""
    starts, stops, valid = read_spans(fields, number, rows)
    codes = np.full(rows, NO_STRING, np.int64)
    codes[valid] = pool.add(buffer, starts[valid], stops[valid])
    return codes
