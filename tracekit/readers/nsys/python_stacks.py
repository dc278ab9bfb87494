"""Read samples of Python threads, which nsys stores as NVTX marks in two NVTX domains.

The payload of a mark holds the call stack of the sample:

1. the number of the thread in the interpreter (8 bytes),
2. the state of the thread, and the number of frames (4 bytes each),
3. the frames from the innermost one to the outermost one (24 bytes each).

A frame consists of the string ids of its function and of its file (8 bytes each), its line (4 bytes), and 4 unused
bytes.
"""

from __future__ import annotations

import binascii
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common import columns as col
from tracekit.readers.common.protobuf.decoding import extract_strings
from tracekit.readers.nsys import ids, nvtx
from tracekit.readers.nsys.tables import ROWID, ColumnsRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracekit.readers.common.tries import Int64Array
    from tracekit.readers.nsys.lookups import Lookups

    Batch = dict[str, pa.Array]
    Domains = Mapping[tuple[int, int], int]

TABLE = "python_samples"
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
            nvtx.resolve_domain_ids(lookups, TABLE, marks),
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
