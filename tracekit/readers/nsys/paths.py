"""Remove folders, which may be private, from the paths in columns of Nsight Systems captures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.readers.nsys.lookups import Lookups, Resolver

_START = r"(?:/|~/|\.{1,2}/|[A-Za-z]:[\\/]|\\\\)"
"""Beginning of a path on Linux or Windows."""
_BEFORE = r"^|[\s'\"(\[{<>=,;:|]"
"""Character before a path in a text."""
_KERNEL_PATH = r"/(?:proc|sys|dev)/"
_PATH_WITH_SPACES = rf"(?m)(: {_KERNEL_PATH}[^\s:]*)|(: ){_START}[^\n:]*[/\\]([^/\\\s]+)$"
"""Path after a colon, up to the end of the line."""
_QUOTED_PATH = rf"(['\"]){_START}[^'\"\n]*[/\\]"
_UNCHANGED = rf"https?://[^\s'\"]*|(?:{_BEFORE}){_KERNEL_PATH}[^\s'\"]*"
"""Addresses of web pages, and paths of files of the Linux kernel, which are the same on all machines."""
_FOLDERS = rf"(?m)({_UNCHANGED})|({_BEFORE}){_START}[^\s'\";,|<>]*[/\\]"


def extract_file_names(paths: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return the file name of each path.

    A name that does not begin like a path, such as ``kworker/0:1``, is unchanged.
    """
    return pc.replace_substring_regex(paths, r"(?s)^(?:[/.~]|[A-Za-z]:[\\/]|\\\\).*[/\\]", "")


def remove_folders(texts: pa.Array) -> pa.Array:
    """Replace each path in the texts with its file name, and return the texts.

    Addresses of web pages are unchanged, and so are paths of files of the Linux kernel, such as
    ``/proc/sys/kernel/perf_event_paranoid``.
    """
    for pattern, replacement in ((_PATH_WITH_SPACES, r"\1\2\3"), (_QUOTED_PATH, r"\1"), (_FOLDERS, r"\1\2")):
        texts = pc.replace_substring_regex(texts, pattern, replacement)
    return texts


def _create_resolver(
    column: str, transform: Callable[[pa.Array], pa.Array], source_column: str | None = None
) -> Resolver:
    """Return a resolver that computes a string column by applying ``transform`` to the strings of a source column.

    Args:
        column: Name of the declared column.
        transform: Function that is applied to the distinct strings of each chunk.
        source_column: Name of the source column. By default, it is ``column``.
    """
    source = source_column or column

    def resolve(lookups: Lookups, table_name: str, source_rows: pa.Table) -> pa.ChunkedArray:
        strings = source_rows[source]
        if not pa.types.is_dictionary(strings.type):
            strings = pa.chunked_array([lookups.look_up_strings(table_name, column, strings, lookups.strings)])
        return pa.chunked_array([_map_strings(chunk, transform) for chunk in strings.chunks], strings.type)

    return (source,), resolve


def _map_strings(array: pa.DictionaryArray, transform: Callable[[pa.Array], pa.Array]) -> pa.DictionaryArray:
    """Apply a function to the distinct strings of a dictionary array, and return the new array."""
    changed = transform(array.dictionary).dictionary_encode()
    return pa.DictionaryArray.from_arrays(changed.indices.take(array.indices), changed.dictionary)


RESOLVERS: dict[str, dict[str, Resolver]] = {
    "cpu_page_faults": {
        "module": _create_resolver("module", extract_file_names),
        "source_file": _create_resolver("source_file", extract_file_names, "sourceFile"),
    },
    "diagnostics": {"text": _create_resolver("text", remove_folders)},
    "jit_operations": {"cache_path": _create_resolver("cache_path", extract_file_names, "cachePath")},
    "openacc_events": {"source_file": _create_resolver("source_file", extract_file_names, "srcFile")},
}
