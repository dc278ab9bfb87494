"""Read Parquet page headers to limit the memory of columns before pyarrow allocates it.

A page of a few bytes can decompress to gigabytes, and every row can refer to one long string in a dictionary. The
uncompressed sizes in the footer of a hostile file can be wrong, so the sizes in the page headers are used instead.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.readers.common.damage import Damage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tracekit.readers.common.budget import Budget
    from tracekit.system.files import InputFile

DATA, DICTIONARY, DATA_V2 = 0, 2, 3
PLAIN_DICTIONARY, DELTA_BYTE_ARRAY, RLE_DICTIONARY = 2, 7, 8
_TYPE, _SIZE, _COMPRESSED_SIZE, _DATA, _DICTIONARY, _DATA_V2 = 1, 2, 3, 5, 7, 8
_VALUES, _ENCODING, _ENCODING_V2 = 1, 2, 4
_LOW_RATIO_CODECS = ("UNCOMPRESSED", "SNAPPY", "LZ4")
"""Compression codecs whose compression ratio is always below 1000, so that their pages need no check."""
_HEADER_BYTES = (1 << 8, 1 << 16, 1 << 24)
"""Numbers of bytes to read for a page header, in the order in which they are tried.

The next number is tried if the header is longer, which may be due to its statistics.
"""
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BYTES, _STRUCT = 0, 1, 2, 3, 7, 8, 12
_INTEGERS = (4, 5, 6)
_NEXT_FIELD, _MORE, _LONGEST, _MAX_DEPTH = 16, 0x80, 63, 16


class PageHeader(NamedTuple):
    """The values that tracekit uses from the header of a Parquet page.

    Attributes:
        type: Number of the page type in the Parquet format, or -1 if the header has none.
        size: Uncompressed size of the page in bytes.
        values: Number of values on the page.
        encoding: Number of the encoding of the values in the Parquet format, or -1 if the header has none.
    """

    type: int
    size: int
    values: int
    encoding: int


class PageTotals(NamedTuple):
    """Totals of the pages of a Parquet column chunk.

    Attributes:
        size: Uncompressed size of all pages in bytes.
        decoded: Upper limit for the size in bytes of the dictionary-encoded values once they are decoded.
        encodings: Numbers of the encodings that occur on the pages, as in ``PageHeader.encoding``.
    """

    size: int
    decoded: int
    encodings: frozenset[int]


def reserve_columns(file: InputFile, metadata: Any, names: Collection[str], budget: Budget) -> None:
    """Check that columns have one value per row, and reserve memory for the decompressed size of their pages.

    No memory is reserved for columns that are uncompressed or use the codecs SNAPPY or LZ4, because the compression
    ratio of these codecs is below 1000.

    Args:
        file: The open file.
        metadata: The ``pyarrow.parquet.FileMetaData`` of the file.
        names: Names of the columns, none of which may be nested.
        budget: Memory budget of the columns.

    Raises:
        Damage: A column does not have one value per row, or the columns exceed the budget.
    """
    for rows, chunk in _iterate_column_chunks(metadata, names):
        if chunk.num_values != rows:
            raise Damage(
                f"column {chunk.path_in_schema} declares {chunk.num_values} values, but its row group has {rows} rows"
            )
        if chunk.compression not in _LOW_RATIO_CODECS:
            budget.reserve(_compute_column_chunk_totals(file, chunk).size, 1, "bytes of pages")


def find_columns_of_long_strings(file: InputFile, metadata: Any, names: Collection[str], budget: Budget) -> list[str]:
    """Return the names of string columns that must be read as dictionaries, because their strings may exceed a budget.

    Decoding one of these columns to a string column would repeat a long string for each row that shares the string.

    Args:
        file: The open file.
        metadata: The ``pyarrow.parquet.FileMetaData`` of the file.
        names: Names of the string columns to check.
        budget: Budget whose whole limit applies to each column separately. Nothing is reserved.

    Raises:
        Damage: A page header is invalid.
    """
    sizes: Counter[str] = Counter()
    for _, chunk in _iterate_column_chunks(metadata, names):
        totals = _compute_column_chunk_totals(file, chunk)
        unlimited = budget.limit + 1 if DELTA_BYTE_ARRAY in totals.encodings else 0
        sizes[chunk.path_in_schema] += totals.size + totals.decoded + unlimited
    return [name for name in names if sizes[name] > budget.limit]


def _iterate_column_chunks(metadata: Any, names: Collection[str]) -> Iterator[tuple[int, Any]]:
    """Return an iterator over the chunks of the named columns, each paired with the number of rows of its row group."""
    indices = [i for i in range(metadata.num_columns) if metadata.schema.column(i).path in names]
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    return ((group.num_rows, group.column(i)) for group in groups for i in indices)


def _compute_column_chunk_totals(file: InputFile, chunk: Any) -> PageTotals:
    first = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < first:
        first = chunk.dictionary_page_offset
    return read_page_totals(file, first, chunk.total_compressed_size)


def read_page_totals(file: InputFile, start: int, size: int) -> PageTotals:
    """Read the page headers of a column chunk and return the totals of its pages.

    Args:
        file: The open file.
        start: Offset of the first page in the file.
        size: Size of all pages together in the file, in bytes.

    Raises:
        Damage: A page header is invalid.
    """
    if not 0 <= start <= start + size <= file.size:
        raise Damage(
            f"a column chunk declares pages at offsets {start} to {start + size}, "
            f"but the file has only {file.size} bytes"
        )
    total = coded = longest = 0
    encodings = set()
    for page in _read_page_headers(file, start, start + size):
        total += page.size
        encodings.add(page.encoding)
        if page.type == DICTIONARY:
            longest = max(longest, page.size)
        elif page.encoding in (PLAIN_DICTIONARY, RLE_DICTIONARY):
            coded += page.values
    return PageTotals(total, coded * longest, frozenset(encodings))


def _read_page_headers(file: InputFile, offset: int, stop: int) -> Iterator[PageHeader]:
    while offset < stop:
        header, length = _read_page_header(file, offset, stop)
        size, compressed = header.get(_SIZE), header.get(_COMPRESSED_SIZE)
        if not (
            isinstance(size, int)
            and isinstance(compressed, int)
            and size >= 0
            and 0 <= compressed <= stop - offset - length
        ):
            raise Damage(
                f"the page at offset {offset} declares {compressed} compressed and {size} uncompressed bytes, "
                f"but only {stop - offset} bytes are left in its column chunk"
            )
        yield _parse_page_header(header, size)
        offset += length + compressed


def _parse_page_header(header_fields: dict[int, Any], page_size: int) -> PageHeader:
    kind = header_fields.get(_TYPE, -1)
    number = {DATA: _DATA, DICTIONARY: _DICTIONARY, DATA_V2: _DATA_V2}.get(kind, 0)
    details = header_fields.get(number)
    if not isinstance(details, dict):
        return PageHeader(kind, page_size, 0, -1)
    encoding = details.get(_ENCODING_V2 if kind == DATA_V2 else _ENCODING, -1)
    return PageHeader(kind, page_size, max(0, details.get(_VALUES, 0)), encoding)


def _read_page_header(file: InputFile, offset: int, stop: int) -> tuple[dict[int, Any], int]:
    """Return the fields of the header of a page by number, and the size of the header in bytes."""
    for size in _HEADER_BYTES:
        data = file.read(offset, min(size, stop - offset))
        try:
            return _read_struct(data, 0)
        except IndexError:
            if len(data) == stop - offset:
                break
    raise Damage(f"the header of the page at offset {offset} is not terminated")


def _read_struct(data: bytes, offset: int) -> tuple[dict[int, Any], int]:
    """Read a struct in the compact protocol of Thrift. Fields other than integers and structs are skipped.

    Return the values by field number, and the offset after the struct.
    """
    outer: list[tuple[dict[int, Any], int]] = []
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head = data[offset]
        kind, offset = head & 15, offset + 1
        if kind == _STOP:
            if not outer:
                return fields, offset
            fields, number = outer.pop()
            continue
        if head >= _NEXT_FIELD:
            number += head >> 4
        else:
            number, offset = _read_integer(data, offset)
        if kind in _INTEGERS:
            fields[number], offset = _read_integer(data, offset)
        elif kind == _STRUCT:
            inner = fields[number] = {}
            outer.append((fields, number))
            fields, number = inner, 0
            if len(outer) > _MAX_DEPTH:
                raise Damage(f"the header of a page has more than {_MAX_DEPTH} levels of nested structs")
        else:
            offset = _skip_value(data, offset, kind)


def _skip_value(data: bytes, offset: int, thrift_type: int) -> int:
    """Return the offset after the value that begins at ``offset`` and has the given Thrift type."""
    if thrift_type in (_TRUE, _FALSE):
        return offset
    if thrift_type == _BYTES:
        size, offset = _decode_varint(data, offset)
        return offset + size
    if thrift_type in (_BYTE, _DOUBLE):
        return offset + (1 if thrift_type == _BYTE else 8)
    raise Damage(f"the header of a page has a field of the unknown Thrift type {thrift_type}")


def _read_integer(data: bytes, offset: int) -> tuple[int, int]:
    value = data[offset]
    if value < _MORE:
        return value >> 1 ^ -(value & 1), offset + 1
    value, offset = _decode_varint(data, offset)
    return value >> 1 ^ -(value & 1), offset


def _decode_varint(data: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while data[offset] >= _MORE:
        value |= (data[offset] - _MORE) << shift
        offset, shift = offset + 1, shift + 7
        if shift > _LONGEST:
            raise Damage("a number in the header of a page has more than 64 bits")
    return value | data[offset] << shift, offset + 1
