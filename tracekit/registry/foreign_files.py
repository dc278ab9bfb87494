"""Describe files of other programs by their content, and state what can be done with them.

The descriptions are created only after no reader has recognized a file. They depend on the first and last bytes of the
file. Patterns have no nested repetitions, so that hostile files cannot make them slow.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, NamedTuple

from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.registry.source import Source

_HEAD_BYTES = 1 << 16
_TAIL_BYTES = 1 << 14
_SQLITE_BYTES = 1 << 18
"""Number of bytes of a SQLite database that are searched for the names of its tables."""
_SQLITE = b"SQLite format 3\x00"
_GZIP = b"\x1f\x8b"
_SHOWN_TABLES = 5
_PERFETTO = "a Perfetto trace"
_UNPACK_HINT = "decompress it first: gunzip FILE"
_CHOOSE_HINT = "choose its format with format= or --from, which shows what tracekit cannot read in it"


class FileDescription(NamedTuple):
    """What a file is, and what to do with it.

    Attributes:
        what: Noun phrase for messages, such as "a NumPy file".
        hint: What to do with the file.
    """

    what: str
    hint: str


class _Pattern(NamedTuple):
    """A pattern for the content of the files of a program, and their description."""

    content: re.Pattern[bytes]
    what: str
    hint: str


_PERFETTO_HINT = "open it at https://ui.perfetto.dev"
_PROFILE_HINT = "profile the program with Nsight Systems or the PyTorch profiler, whose files tracekit reads"
_XPROF_HINT = "open it in TensorBoard with its profile plug-in (XProf), or profile the program with Nsight Systems"
_ROCM_HINT = "analyze it with the tools of ROCm, or profile the program with the PyTorch profiler"
_ORIGIN_HINT = "read the capture from which it was computed"
_PRINT_HINT = "print it with: nvprof --csv, or pass the file that nvprof -o wrote"
_NVPROF_HINT = "open it in the NVIDIA Visual Profiler, or profile the program again with Nsight Systems"

_TEXTS = (
    _Pattern(re.compile(rb"(?s)\s*<\?xml.{0,200}<session\b"), "a session of the NVIDIA Visual Profiler", _UNPACK_HINT),
    _Pattern(re.compile(rb"==\d{1,9}== (?:NVPROF|Profiling)"), "output of nvprof without --csv", _PRINT_HINT),
    _Pattern(
        re.compile(rb'"?Time \(%\)"?,"?Total Time \(ns\)"?,'),
        "a CSV report of nsys stats",
        "read the report from which it was computed",
    ),
    _Pattern(
        re.compile(
            rb'"(?:Kind|Domain|Correlation_Id)","(?:Agent_Id|Direction|Function|Dispatch_Id)"'
            rb'|"CodeObj","Vaddr","Instruction"'
        ),
        "a CSV file of rocprofv3 (ROCm)",
        _ROCM_HINT,
    ),
    _Pattern(
        re.compile(rb'"Index","KernelName","gpu-id"|"Name","Calls","TotalDurationNs","AverageNs"'),
        "a CSV file of rocprof (ROCm)",
        _ROCM_HINT,
    ),
    _Pattern(
        re.compile(
            rb"Dispatch_ID,Kernel_Name,GPU_ID|Kernel_Name,Count,Sum\(ns\),|device,HBMBw,"
            rb"|workload_name,command,ip_blocks,"
        ),
        "a CSV file of ROCm Compute Profiler (rocprof-compute)",
        _ROCM_HINT,
    ),
    _Pattern(
        re.compile(
            rb"type,time ms,percent|op category,|Parent (?:op category|cpu_op),|Kernel name,Short Kernel duration"
            rb"|name,param: |name,cpu_op_name,cpu_op_uid,|name,[^\n]{0,80}op category,|bin_start,bin_end,count"
            rb"|(?:rank|Collective name),[^\n]{0,80}Process Group Name,|,node,gpu_rank,pid,"
            rb"|Collective_operation,Replica_groups,|[^\n]{0,300}(?:,param: |total_direct_kernel_time)"
        ),
        "a CSV table of TraceLens",
        _ORIGIN_HINT,
    ),
    _Pattern(re.compile(rb"# perf|PERFILE2"), "a recording of Linux perf", "open it with perf report"),
)
_JSON_BEFORE_TRACES = (
    _Pattern(
        re.compile(rb'\{\s*"format"\s*:\s*"tracekit-baseline"'),
        "a baseline of tracekit diff",
        "pass it as A or B to tracekit diff",
    ),
    _Pattern(
        re.compile(rb'"\$schema"\s*:\s*"https://www\.speedscope\.app/'),
        "a speedscope file, which tracekit writes but cannot read",
        "open it at https://www.speedscope.app, or read the capture from which it was exported",
    ),
)
"""Patterns of files that may contain text like that of a Chrome trace."""
_JSON = (
    _Pattern(re.compile(rb'"rocprofiler-sdk-tool"\s*:'), "a JSON file of rocprofv3 (ROCm)", _ROCM_HINT),
    _Pattern(
        re.compile(
            rb'"(?:wave_filenames|num_stitched)"\s*:|\{"name":"wstates\d|"\[gfx_clock, realtime_clock\]"'
            rb'|\{"code":\[\[|\{"\d{1,3}":\[\[\d'
        ),
        "a part of a thread trace of rocprofv3 (ROCm)",
        "open its folder with the ROCprof Compute Viewer",
    ),
    _Pattern(
        re.compile(rb'"schema"\s*:\s*"[0-9.]{3,20}(?:-chakra[^"]{0,20})?"[^\[]{0,400}"nodes"\s*:\s*\['),
        "an execution trace of PyTorch (Chakra), which contains operators but no GPU times",
        "read the trace that the PyTorch profiler wrote in the same run",
    ),
    _Pattern(
        re.compile(rb"\s*\[\s*\[\s*-?\d{1,20}\s*,\s*\d\s*,\s*-?\d{1,20}\s*,\s*\d{1,3}\s*\]"),
        "a memory timeline of the PyTorch profiler in raw form",
        "read the trace that the PyTorch profiler wrote in the same run",
    ),
    _Pattern(
        re.compile(rb'"frame"\s*:\s*\{[^}]{0,4000}\}\s*,\s*"metrics"\s*:'), "a profile of Proton (Triton)", _UNPACK_HINT
    ),
    _Pattern(
        re.compile(
            rb'\s*[\[{]\s*\{?\s*"(?:cols|byProgram|byCategory|memoryIds|bySizeToMaxHeap|hloModule|hloInfoMap'
            rb'|memoryProfilePerAllocator|podStatsSequence)"\s*:'
        ),
        "a page of XProf, the profiler of TensorFlow and JAX",
        _XPROF_HINT,
    ),
    _Pattern(
        re.compile(rb'"nodes"\s*:\s*\[\s*\{[^\]]{0,400}"callFrame"\s*:'),
        "a CPU profile of V8",
        "open it in the developer tools of Chrome",
    ),
    _Pattern(re.compile(rb'"(?:op_name|replay_ir)"\s*:'), "a list of operators to replay with PyTorch", _ORIGIN_HINT),
)
_CHROME_EVENT = re.compile(rb'"ph"\s*:\s*"[A-Za-z]"')
_CHROME_TRACES = (
    _Pattern(re.compile(rb'"viztracer_metadata"|"cat"\s*:\s*"FEE"|viztracer'), "VizTracer", _PERFETTO_HINT),
    _Pattern(
        re.compile(
            rb'"source"\s*:\s*"DevTools"|CrBrowserMain|"cat"\s*:\s*"(?:toplevel|devtools\.|disabled-by-default-)'
        ),
        "Chrome",
        "open it in the developer tools of Chrome",
    ),
    _Pattern(re.compile(rb'CPU HIP API|"(?:HSA|HIP) API"'), "rocprof (ROCm)", f"{_PERFETTO_HINT}, or {_PROFILE_HINT}"),
    _Pattern(re.compile(rb'"name"\s*:\s*"GPU\d{1,3}"\}|rocpd'), "rpd (ROCm)", f"{_PERFETTO_HINT}, or {_PROFILE_HINT}"),
    _Pattern(
        re.compile(rb'"highres-ticks"|"(?:name"\s*:\s*")?/(?:device|host):|"hlo_(?:op|module)"\s*:|/job:localhost'),
        "JAX or TensorFlow (XLA)",
        f"{_PERFETTO_HINT}, or {_PROFILE_HINT}",
    ),
    _Pattern(re.compile(rb"NEGOTIATE_"), "Horovod", _PERFETTO_HINT),
    _Pattern(re.compile(rb'"cat"\s*:\s*"(?:Session|Node)"[^}]{0,300}"pid"'), "ONNX Runtime", _PERFETTO_HINT),
    _Pattern(re.compile(rb'"name"\s*:\s*"(?:Total )?ExecuteCompiler"'), "the compiler Clang", _PERFETTO_HINT),
    _Pattern(re.compile(rb'"AIU \d|"TS\d"\s*:'), "the IBM AIU", _PERFETTO_HINT),
    _Pattern(re.compile(rb"hermes"), "the JavaScript engine Hermes", _PERFETTO_HINT),
)
_ZIP_ENTRIES = (
    _Pattern(
        re.compile(rb"\[Content_Types\]\.xml|xl/|_rels/"), "an Office document, such as an Excel workbook", _ORIGIN_HINT
    ),
    _Pattern(re.compile(rb"/data\.pkl|/byteorder"), "a file of torch.save, such as a checkpoint", _PROFILE_HINT),
    _Pattern(re.compile(rb"\.npy"), "a NumPy archive", _ORIGIN_HINT),
)
_BINARIES = (
    _Pattern(re.compile(rb"BZh[1-9]"), "a bzip2 file", "decompress it first if it contains a profile: bunzip2 FILE"),
    _Pattern(re.compile(rb"\xfd7zXZ\x00"), "an xz file", "decompress it first if it contains a profile: unxz FILE"),
    _Pattern(
        re.compile(rb"\x28\xb5\x2f\xfd"),
        "a zstd file, not a profile",
        "decompress it first if it contains a profile: unzstd FILE",
    ),
    _Pattern(re.compile(rb"(?s).{257}ustar"), "a tar archive", "extract the profile from it first: tar -xf FILE"),
    _Pattern(
        re.compile(rb"(?s).{0,400}type\.googleapis\.com/tensorflow\.profiler\."),
        "a page of XProf, the profiler of TensorFlow and JAX",
        _XPROF_HINT,
    ),
    _Pattern(
        re.compile(rb"\x00\x04\x00\x00\x04\x00\x00\x00\x01\x04\x00\x00"),
        "a binary profile of an old nvprof",
        _NVPROF_HINT,
    ),
    _Pattern(re.compile(rb"\x93NUMPY"), "a NumPy array", _ORIGIN_HINT),
    _Pattern(re.compile(rb"\x89PNG|\xff\xd8\xff|GIF8"), "an image", _ORIGIN_HINT),
    _Pattern(re.compile(rb"%PDF-"), "a PDF document", _ORIGIN_HINT),
    _Pattern(
        re.compile(rb"\x7fELF|MZ"), "a program or library", "profile the program, and pass the file of the profiler"
    ),
    _Pattern(re.compile(rb"(?s).{8}DUCK"), "a DuckDB database", _ORIGIN_HINT),
)
_COMPRESSED_REPORTS = (
    _Pattern(re.compile(rb"NVIDIA Tegra Profiler Report"), "a report of Nsight Systems", _UNPACK_HINT),
    _Pattern(re.compile(rb"NVR\x00"), "a report of Nsight Compute", _UNPACK_HINT),
    _Pattern(
        re.compile(rb"(?s)\n.{1,5}(?:\x08.{1,10})?\x12.{1,2}(?:/device:|/host:|Task Environment|#)"),
        "a profile of JAX or TensorFlow (XSpace)",
        _UNPACK_HINT,
    ),
)
_MEMORY_SNAPSHOT = re.compile(rb"device_traces|segments")
_DATABASES = (
    (("rocpd_api", "rocpd_op"), "an rpd database of ROCm", _ROCM_HINT),
    (("rocpd_",), "a rocpd database of rocprofv3 (ROCm)", _ROCM_HINT),
    (("HIP", "OPS"), "a database of rocprof (ROCm)", _ROCM_HINT),
    (("KERN",), "a database of rocprof (ROCm)", _ROCM_HINT),
    (("thread_track", "slice"), "a database that the trace processor of Perfetto exported", _ORIGIN_HINT),
)
"""Names or beginnings of names of tables, and what a database with all of them is."""
_CREATE_TABLE = re.compile(rb"(?i)CREATE TABLE (?:IF NOT EXISTS )?[\"'`\[]?([A-Za-z_]\w{0,59})")
_JSON_START = re.compile(
    rb"(?:\xef\xbb\xbf)?\s{0,4096}(?:\{\s{0,4096}[\"}]|\[\s{0,4096}(?:[\[{\"\]\d-]|true|false|null))"
)
_PACKET_FIELDS = frozenset((6, 8, 10, 11, 12, 33, 36, 41, 42, 50, 52, 53, 54, 58, 59, 60, 61, 79, 87))
"""Numbers of common fields of the packets of a Perfetto trace."""
_PACKET_TAG, _MAX_PACKET_FIELD, _CHECKED_PACKETS = 0x0A, 1000, 8


def describe_foreign_file(source: Source) -> FileDescription | None:
    """Return a description of a file of another program. Return None if the content is unknown."""
    head, tail = _read_head_and_tail(source)
    if head.startswith(_GZIP):
        return _describe_gzip_file(head)
    described = describe_content(head, tail)
    if described is not None and described.hint == _UNPACK_HINT:  # which is not compressed
        return described._replace(hint=_CHOOSE_HINT)
    return described


def describe_content(head: bytes, tail: bytes = b"") -> FileDescription | None:
    """Return a description of the content of a file, given its first and last bytes. Return None if it is unknown."""
    if head.startswith(_SQLITE):
        return _describe_database(head)
    if head.startswith(b"PK\x03\x04"):
        described = _search(_ZIP_ENTRIES, head + tail)
        return described or FileDescription(
            "a zip archive, not a profile", "extract the profile from it first if it contains one"
        )
    if head[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        return _describe_pickle(head + tail)
    if _JSON_START.match(head):
        return _describe_json(head, tail)
    if _is_perfetto_trace(head):
        return FileDescription(_PERFETTO, f"choose the format perfetto with format= or --from, or {_PERFETTO_HINT}")
    return _match(_TEXTS, head) or _match(_BINARIES, head)


def _read_head_and_tail(source: Source) -> tuple[bytes, bytes]:
    """Return the first and the last bytes of a file, or nothing if it cannot be read."""
    try:
        with source.open() as file:
            size = _SQLITE_BYTES if source.head.startswith(_SQLITE) else _HEAD_BYTES
            head = file.read(0, min(size, file.size))
            start = max(len(head), file.size - _TAIL_BYTES)
            return head, file.read(start, file.size - start)
    except (TracekitError, OSError):
        return source.head, b""


def _search(patterns: Sequence[_Pattern], content: bytes) -> FileDescription | None:
    """Return the description of the first pattern that occurs anywhere in the content."""
    return next((FileDescription(p.what, p.hint) for p in patterns if p.content.search(content)), None)


def _match(patterns: Sequence[_Pattern], content: bytes) -> FileDescription | None:
    """Return the description of the first pattern that matches at the start of the content."""
    return next((FileDescription(p.what, p.hint) for p in patterns if p.content.match(content)), None)


def _describe_gzip_file(head: bytes) -> FileDescription:
    """Return a description of a gzip file, of which only the first bytes are decompressed."""
    try:
        content = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, _SQLITE_BYTES)
    except zlib.error:
        return FileDescription("a gzip file, but it is damaged", "copy it again from its source")
    if not content:
        return FileDescription("a gzip file without content", "copy it again from its source")
    names = _read_table_names(content)
    described = _match(_COMPRESSED_REPORTS, content)
    if described is None and "StringIds" in names:
        described = FileDescription("a SQLite export of Nsight Systems", _UNPACK_HINT)
    if described is None and "StringTable" in names and any(n.startswith("CUPTI_ACTIVITY_KIND_") for n in names):
        described = FileDescription("a profile of nvprof", _UNPACK_HINT)
    described = described or describe_content(content)
    if described is None:
        what = "a gzip file whose content is unknown"
        return FileDescription(what, "decompress it first if it contains a profile: gunzip FILE")
    if described.what == _PERFETTO:
        return described
    return FileDescription(f"a gzip file that contains {described.what}", described.hint)


def _describe_json(head: bytes, tail: bytes) -> FileDescription:
    """Return a description of a JSON file that is not a trace of the PyTorch profiler."""
    content = head + tail
    if described := _search(_JSON_BEFORE_TRACES, content):
        return described
    is_array = head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
    if re.search(rb'"traceEvents"\s*:', content) or (is_array and _CHROME_EVENT.search(head)):
        tool = _search(_CHROME_TRACES, content)
        what = "a Chrome trace, but not one of the PyTorch profiler or tracekit"
        if tool is None:
            return FileDescription(what, f"{_PERFETTO_HINT}, or {_PROFILE_HINT}")
        return FileDescription(f"{what}: it looks like a trace of {tool.what}", tool.hint)
    if described := _search(_JSON, content):
        return described
    hint = "pass a trace of the PyTorch profiler, or choose the format with format= or --from"
    return FileDescription("a JSON file, but not a trace that tracekit reads", hint)


def _describe_pickle(content: bytes) -> FileDescription:
    """Return a description of a pickle file. It is never loaded, because loading a pickle file can run any program."""
    if _MEMORY_SNAPSHOT.search(content):
        return FileDescription("a snapshot of the CUDA memory of PyTorch", _UNPACK_HINT)
    return FileDescription("a pickle file, which tracekit does not load", _PROFILE_HINT)


def _describe_database(head: bytes) -> FileDescription:
    """Return a description of a SQLite database that no reader recognizes, from the names of its tables."""
    names = _read_table_names(head)
    for required, what, hint in _DATABASES:
        if all(any(n == r or (r.endswith("_") and n.startswith(r)) for n in names) for r in required):
            return FileDescription(f"a SQLite database, but not an Nsight Systems export: it looks like {what}", hint)
    more = ", …" if len(names) > _SHOWN_TABLES else ""
    tables = f" (its tables are {', '.join(names[:_SHOWN_TABLES])}{more})" if names else ""
    hint = "pass the report of Nsight Systems, or its SQLite export"
    return FileDescription(f"a SQLite database, but not an Nsight Systems export{tables}", hint)


def _read_table_names(head: bytes) -> list[str]:
    """Return the names of the tables of a SQLite database that are near its beginning."""
    if not head.startswith(_SQLITE):
        return []
    return sorted({name.decode("ascii") for name in _CREATE_TABLE.findall(head)} - {"sqlite_sequence"})


def _is_perfetto_trace(head: bytes) -> bool:
    """Return whether the content begins with packets of a Perfetto trace."""
    at, fields = 0, set[tuple[int, int]]()
    while len(fields) < _CHECKED_PACKETS and at < len(head):
        tag, at = head[at], at + 1
        size, at = _decode_varint(head, at)
        key, _ = _decode_varint(head, at)
        if tag != _PACKET_TAG or not size or key & 7 not in (0, 2) or not 2 < key >> 3 < _MAX_PACKET_FIELD:  # noqa: PLR2004
            return False
        fields.add((at, key >> 3))
        at += size
    return any(number in _PACKET_FIELDS for _, number in fields)


def _decode_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint at an offset and the offset after it. An invalid varint is 0."""
    value = 0
    for shift, byte in enumerate(data[at : at + 5]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:  # noqa: PLR2004 - the bit for more bytes
            return value, at + shift + 1
    return 0, at
