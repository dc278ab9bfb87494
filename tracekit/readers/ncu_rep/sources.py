"""Read the code of the profiled modules as cubins, PTX and source files.

Payloads are the cubins, the PTX and the contents of the source files. If the column ``data`` is requested, all payloads
are in memory together. Otherwise, only one message is in memory at a time. Payloads are not compressed, so they never
take more memory than the size of the file.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tracekit.readers.common.protobuf.decoding import convert_to_signed
from tracekit.readers.common.protobuf.messages import parse
from tracekit.readers.ncu_rep.container import decode_text, iterate_results, message_class, require_max_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.readers.ncu_rep.container import ReportFile
    from tracekit.readers.ncu_rep.rows import Row

    Module = tuple[int | None, int]
    Payload = tuple[str, str | None, bytes | None]

KINDS = ("code", "ptx", "cubin")
LAUNCH_COLUMNS = ("launch_id", "launches")
MAX_FILES = MAX_MODULES = 1 << 16


def iterate_source_rows(report: ReportFile, columns: Sequence[str]) -> Iterator[Row]:
    """Yield one row of ``ncu_sources`` per cubin, PTX program or source file of each module.

    Args:
        report: The report.
        columns: The requested columns. All other columns may be missing from the rows.
    """
    launches_by_module = _collect_launch_ids_by_module(report) if any(c in columns for c in LAUNCH_COLUMNS) else {}
    total = 0
    for number, location in enumerate(report.sources):
        source, process = report.read_module_source(number), report.find_process_id(location)
        launches = launches_by_module.get((process, source.module), ())
        module_columns = {
            "launch_id": launches[0] if len(launches) == 1 else None,
            "launches": len(launches),
            "process_id": process,
            "module": convert_to_signed(source.module),
        }
        for kind, name, data in _iterate_module_payloads(source, number):
            payload_columns = {"source_id": total, "kind": kind, "name": name, "size_bytes": len(data or b"")}
            yield module_columns | payload_columns | ({"data": data} if "data" in columns else {})
            total += 1


def _collect_launch_ids_by_module(report: ReportFile) -> dict[Module, list[int]]:
    """Return the launch ids of the results that refer to each module, by process id and module number."""
    launches: dict[Module, list[int]] = defaultdict(list)
    for number, result in iterate_results(report):
        process = report.find_process_id(report.results[number])
        for module in _list_module_numbers(number, result):
            launches[process, module].append(number)
    return launches


def _list_module_numbers(result_number: int, result: Any) -> set[int]:
    if "modules" in result.DESCRIPTOR.fields_by_name:
        return set(require_max_count(result.modules, MAX_MODULES, f"modules of result {result_number}"))
    return {result.source.module} if result.source.HasField("module") else set()


def _iterate_module_payloads(source: Any, source_number: int) -> Iterator[Payload]:
    """Yield the kind, the name and the bytes of each payload of a module.

    The name is None for code that is not a source file. The bytes are None for a source file without content.
    """
    for kind in KINDS:
        if data := getattr(source, kind):
            yield kind, None, data
    for file in _iterate_source_files(source, source_number):
        yield "file", _extract_file_name(file.path), file.content or None


def _iterate_source_files(source: Any, source_number: int) -> Iterator[Any]:
    what = f"files of source {source_number}"
    remaining = MAX_FILES
    for encoded_list in require_max_count(source.files, MAX_FILES, f"lists of {what}"):
        files = require_max_count(
            parse(message_class("SourceFiles"), encoded_list, f"a list of {what}").files, remaining, what
        )
        remaining -= len(files)
        yield from (parse(message_class("SourceFile"), data, f"an entry of the {what}") for data in files)


def _extract_file_name(path: bytes) -> str | None:
    """Return the last component of a Linux or Windows path, or None if the component is empty."""
    return decode_text(path.replace(b"\\", b"/").rpartition(b"/")[2]) or None
