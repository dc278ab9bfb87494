"""Pages of Parquet columns: what their headers announce, read before pyarrow sets memory aside for it.

A page of some bytes may announce gigabytes, and a dictionary may stand for one long text on every row. The footer of a
file, which tells neither truly in a file made to harm, says only where the pages begin.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.readers.common.damage import Damage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tracekit.files import InputFile
    from tracekit.readers.common.budget import Budget

DATA, DICTIONARY, DATA_V2 = 0, 2, 3
PLAIN_DICTIONARY, DELTA_BYTE_ARRAY, RLE_DICTIONARY = 2, 7, 8
_TYPE, _SIZE, _PACKED, _DATA, _DICTIONARY, _DATA_V2 = 1, 2, 3, 5, 7, 8
_VALUES, _ENCODING, _ENCODING_V2 = 1, 2, 4
_LITTLE_COMPRESSED = ("UNCOMPRESSED", "SNAPPY", "LZ4")
"""Ways of compression that make little of what is much, but never a thousandth."""
_HEADER_BYTES = (1 << 8, 1 << 16, 1 << 24)
"""Bytes to look for the header of a page in, one after the other; statistics may make it long."""
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BYTES, _STRUCT = 0, 1, 2, 3, 7, 8, 12
_INTEGERS = (4, 5, 6)
_NEXT_FIELD, _MORE, _LONGEST, _MAX_DEPTH = 16, 0x80, 63, 16


class Page(NamedTuple):
    """A page: its type, its size when it is unpacked, its values, and how these are encoded."""

    type: int
    size: int
    values: int
    encoding: int


class Pages(NamedTuple):
    """What the pages of a column are when they are unpacked.

    Attributes:
        size: Bytes of all pages.
        spread: Bytes that the values of dictionaries may take on their rows, at most.
        encodings: How values are encoded.
    """

    size: int
    spread: int
    encodings: frozenset[int]


def check_columns(file: InputFile, metadata: Any, names: Collection[str], budget: Budget) -> None:
    """Check that columns have a value a row, and count what their pages take in memory when they are unpacked.

    Args:
        file: The open file.
        metadata: Its ``pyarrow.parquet.FileMetaData``.
        names: The columns, none of which is nested.
        budget: Memory that they may take.

    Raises:
        Damage: They have more values, or take more memory.
    """
    for rows, chunk in _chunks(metadata, names):
        if chunk.num_values != rows:
            raise Damage(f"column {chunk.path_in_schema} says it has {chunk.num_values} values in {rows} rows")
        if chunk.compression not in _LITTLE_COMPRESSED:
            budget.take(_pages_of(file, chunk).size, 1, "bytes of pages")


def long_texts(file: InputFile, metadata: Any, names: Collection[str], budget: Budget) -> list[str]:
    """Return the columns of texts that may take too much memory on their rows, so that dictionaries are to be read.

    Args:
        file: The open file.
        metadata: Its ``pyarrow.parquet.FileMetaData``.
        names: Columns of texts.
        budget: Memory that each of them may take.

    Raises:
        Damage: Pages break the format.
    """
    spread: Counter[str] = Counter()
    for _, chunk in _chunks(metadata, names):
        found = _pages_of(file, chunk)
        unlimited = budget.most + 1 if DELTA_BYTE_ARRAY in found.encodings else 0
        spread[chunk.path_in_schema] += found.size + found.spread + unlimited
    return [name for name in names if spread[name] > budget.most]


def _chunks(metadata: Any, names: Collection[str]) -> Iterator[tuple[int, Any]]:
    """Yield each part of some columns, with the number of rows of its row group."""
    places = [i for i in range(metadata.num_columns) if metadata.schema.column(i).path in names]
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    return ((group.num_rows, group.column(place)) for group in groups for place in places)


def _pages_of(file: InputFile, chunk: Any) -> Pages:
    first = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < first:
        first = chunk.dictionary_page_offset
    return pages(file, first, chunk.total_compressed_size)


def pages(file: InputFile, start: int, size: int) -> Pages:
    """Read the headers of the pages of a column chunk.

    Args:
        file: The open file.
        start: Where its first page begins.
        size: Bytes of all pages in the file.

    Raises:
        Damage: A header breaks the format.
    """
    if not 0 <= start <= start + size <= file.size:
        raise Damage(f"the pages of a column are said to be at bytes {start} to {start + size} of {file.size}")
    total = coded = longest = 0
    encodings = set()
    for page in _walk(file, start, start + size):
        total += page.size
        encodings.add(page.encoding)
        if page.type == DICTIONARY:
            longest = max(longest, page.size)
        elif page.encoding in (PLAIN_DICTIONARY, RLE_DICTIONARY):
            coded += page.values
    return Pages(total, coded * longest, frozenset(encodings))


def _walk(file: InputFile, at: int, stop: int) -> Iterator[Page]:
    while at < stop:
        header, length = _header(file, at, stop)
        size, packed = header.get(_SIZE), header.get(_PACKED)
        if not (isinstance(size, int) and isinstance(packed, int) and size >= 0 and 0 <= packed <= stop - at - length):
            raise Damage(f"the page at byte {at} announces {packed} bytes that become {size}; {stop - at} are left")
        yield _page(header, size)
        at += length + packed


def _page(header: dict[int, Any], size: int) -> Page:
    kind = header.get(_TYPE, -1)
    number = {DATA: _DATA, DICTIONARY: _DICTIONARY, DATA_V2: _DATA_V2}.get(kind, 0)
    details = header.get(number)
    if not isinstance(details, dict):
        return Page(kind, size, 0, -1)
    encoding = details.get(_ENCODING_V2 if kind == DATA_V2 else _ENCODING, -1)
    return Page(kind, size, max(0, details.get(_VALUES, 0)), encoding)


def _header(file: InputFile, at: int, stop: int) -> tuple[dict[int, Any], int]:
    """Read the header of a page, and how many bytes it has."""
    for most in _HEADER_BYTES:
        data = file.read(at, min(most, stop - at))
        try:
            return _struct(data, 0)
        except IndexError:
            if len(data) == stop - at:
                break
    raise Damage(f"the header of the page at byte {at} does not end")


def _struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """Read a struct of Thrift's compact protocol: integers and structs by number of field, and the place after it."""
    outer: list[tuple[dict[int, Any], int]] = []
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head = data[at]
        kind, at = head & 15, at + 1
        if kind == _STOP:
            if not outer:
                return fields, at
            fields, number = outer.pop()
            continue
        if head >= _NEXT_FIELD:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        if kind in _INTEGERS:
            fields[number], at = _integer(data, at)
        elif kind == _STRUCT:
            inner = fields[number] = {}
            outer.append((fields, number))
            fields, number = inner, 0
            if len(outer) > _MAX_DEPTH:
                raise Damage("the header of a page is nested too deep")
        else:
            at = _after(data, at, kind)


def _after(data: bytes, at: int, kind: int) -> int:
    """Return the place after a value that is not needed."""
    if kind in (_TRUE, _FALSE):
        return at
    if kind == _BYTES:
        size, at = _varint(data, at)
        return at + size
    if kind in (_BYTE, _DOUBLE):
        return at + (1 if kind == _BYTE else 8)
    raise Damage(f"the header of a page has a field of kind {kind}")


def _integer(data: bytes, at: int) -> tuple[int, int]:
    value = data[at]
    if value < _MORE:
        return value >> 1 ^ -(value & 1), at + 1
    value, at = _varint(data, at)
    return value >> 1 ^ -(value & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] >= _MORE:
        value |= (data[at] - _MORE) << shift
        at, shift = at + 1, shift + 7
        if shift > _LONGEST:
            raise Damage("a number in the header of a page does not end")
    return value | data[at] << shift, at + 1
