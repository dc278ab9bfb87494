"""Code of the modules that were profiled: cubins, PTX and source files, as they stand in the report.

Payloads are kept only when asked for; to count them, messages are taken apart one at a time. Every message lies within
the file, so no more is taken than the file holds.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tracekit.readers.common.protobuf.messages import parse
from tracekit.readers.common.protobuf.wire import signed
from tracekit.readers.ncu_rep.container import declared, limited, numbered, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.readers.ncu_rep.container import Container
    from tracekit.readers.ncu_rep.rows import Row

    Module = tuple[int | None, int]
    Payload = tuple[str, str | None, bytes | None]

KINDS = ("code", "ptx", "cubin")
REFERRING = ("launch_id", "launches")
MAX_FILES = MAX_MODULES = 1 << 16


def rows(report: Container, columns: Sequence[str]) -> Iterator[Row]:
    """The payloads, as rows of ``ncu_sources``.

    Args:
        report: The report.
        columns: The columns that are wanted; others may be missing from the rows.
    """
    referring = _referring(report) if any(c in columns for c in REFERRING) else {}
    total = 0
    for number, place in enumerate(report.sources):
        source, process = report.source(number), report.process_of(place)
        launches = referring.get((process, source.module), ())
        of_module = {
            "launch_id": launches[0] if len(launches) == 1 else None,
            "launches": len(launches),
            "process_id": process,
            "module": signed(source.module),
        }
        for kind, name, data in _payloads(source, number):
            about = {"source_id": total, "kind": kind, "name": name, "size_bytes": len(data or b"")}
            yield of_module | about | ({"data": data} if "data" in columns else {})
            total += 1


def _referring(report: Container) -> dict[Module, list[int]]:
    """Results by the modules that they refer to; the same number is another module in another process."""
    found: dict[Module, list[int]] = defaultdict(list)
    for number, result in numbered(report):
        process = report.process_of(report.results[number])
        for module in _modules(number, result):
            found[process, module].append(number)
    return found


def _modules(number: int, result: Any) -> set[int]:
    if "modules" in result.DESCRIPTOR.fields_by_name:
        return set(limited(result.modules, MAX_MODULES, f"modules of result {number}"))
    return {result.source.module} if result.source.HasField("module") else set()


def _payloads(source: Any, number: int) -> Iterator[Payload]:
    """What is held of a module: kind, name and bytes; a file may be named and not held."""
    for kind in KINDS:
        if data := getattr(source, kind):
            yield kind, None, data
    for file in _files(source, number):
        yield "file", _last_part(file.path), file.content or None


def _files(source: Any, number: int) -> Iterator[Any]:
    what = f"files of source {number}"
    left = MAX_FILES
    for part in limited(source.files, MAX_FILES, f"lists of {what}"):
        files = limited(parse(declared("SourceFiles"), part, f"a list of {what}").files, left, what)
        left -= len(files)
        yield from (parse(declared("SourceFile"), data, f"one of the {what}") for data in files)


def _last_part(path: bytes) -> str | None:
    """The name of a file without its folder, of Linux or of Windows."""
    return text(path.replace(b"\\", b"/").rpartition(b"/")[2]) or None
