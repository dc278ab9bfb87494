"""Write a copy of a report without values that identify people and machines. All other values are unchanged.

Sections are copied in order, and the raw data is copied block by block. Only blocks whose content changes are
compressed again. Lengths and offsets are updated only where they depend on changed blocks.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np

from tracekit.readers.common.damage import Damage, convert_damage
from tracekit.readers.common.protobuf.decoding import (
    VARINT,
    Message,
    encode_delimited,
    encode_field,
    encode_varint,
    read_delimited,
)
from tracekit.readers.nsys_rep.container import (
    BLOCK_MAGIC,
    END,
    OFFSETS,
    OPTIONS,
    RAW,
    TAIL,
    Container,
    RawData,
    compress_block,
)
from tracekit.readers.nsys_rep.container import MAGIC as FILE_MAGIC
from tracekit.readers.nsys_rep.entries import count_block_events
from tracekit.readers.nsys_rep.layout import load_fields
from tracekit.readers.redaction.matcher import join_masks, search_in_batches
from tracekit.readers.redaction.nsys_rep import editors
from tracekit.readers.redaction.nsys_rep.messages import (
    BlockEntries,
    Overwriter,
    StepBudget,
    edit_entries,
    edit_message,
    find_innermost_fields,
)
from tracekit.readers.redaction.patterns import ENVIRONMENT, OUTPUT, is_environment
from tracekit.readers.redaction.state import Redaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from tracekit.readers.common.protobuf.decoding import Int64Array
    from tracekit.readers.nsys_rep.container import Block
    from tracekit.readers.redaction.matcher import Candidate
    from tracekit.readers.redaction.nsys_rep.messages import FieldSpan
    from tracekit.registry.source import Source

EVENT = load_fields("EventBlock").events
STRING, STREAM = load_fields("StringBlock").strings, load_fields("StringBlock").process_streams
_STREAM, _OFFSETS = load_fields("StreamHeader"), load_fields("DataOffsets")
_CONTENT = load_fields("ProcessStream").content_text_id
BASE_STRINGS = 1 << 20
"""Number of strings that a file of any size may declare. It may declare one additional string per byte of the file."""
DECOMPRESSED_BYTES_PER_STEP = 128
"""Number of bytes that are decompressed per step of the budget. Each block is decompressed twice."""
MESSAGE_COST = 4
"""Number of steps for processing a byte of a message, as a multiple of the steps for a byte of a string."""


def redact(source: Source, target: Path | None = None, key: bytes | None = None) -> dict[str, int]:
    """Write a copy of a report without values that identify people and machines.

    Args:
        source: Report to copy.
        target: Path of the copy, which must not exist. If None, the private values are only counted.
        key: Key that determines the pseudonyms, or None for a random key.

    Returns:
        The number of replaced values of each kind.

    Raises:
        CorruptTraceError: The report is damaged, or redacting it takes more steps than allowed for its size.
        UnsupportedVersionError: The compression of the report is not supported.
        TracekitError: The report changed while it was read.
    """
    with io.BufferedWriter(_NullFile()) if target is None else target.open("wb") as out:
        container = Container(source)
        try:
            with convert_damage(source.path, file=container.file):
                report = _RedactedReport(container, source, key)
                report.write(out)
            container.file.check_unchanged()
        finally:
            container.close()
    return dict(report.redaction.counts)


class _NullFile(io.RawIOBase):
    """A writable file that discards its data and records only the total size."""

    def __init__(self) -> None:
        self._length = 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        size = memoryview(data).nbytes  # type: ignore[arg-type]
        self._length += size
        return size

    def seek(self, _offset: int, _whence: int = io.SEEK_SET) -> int:
        """Return the size of the file, because the position is always at the end. The arguments are ignored."""
        return self._length


class _SearchedBlock(NamedTuple):
    """A block, its decompressed bytes, and the intervals of these bytes that may hold private values."""

    block: Block
    body: bytes
    spans: list[Candidate]


class _RedactedReport:
    """A report that is being redacted.

    The constructor edits private fields of small sections. All other private values are redacted when the report is
    written.
    """

    def __init__(self, container: Container, source: Source, key: bytes | None) -> None:
        self.container = container
        self.raw = RawData(container, count_block_events)
        self.budget = StepBudget(source.size)
        self.redaction = Redaction(source.path, key)
        self.lead = source.head[: min(container.offsets[n] for n, data in container.sections.items() if data)]
        if not self.lead.startswith(FILE_MAGIC):
            raise Damage("a section overlaps the magic bytes of the file")
        if sum(map(len, container.sections.values())) > source.size:
            raise Damage("the sections of the report overlap")
        self._check_string_count(source.size)
        edits = editors.create_section_editors(self.redaction)
        small = {name: bytes(data) for name, data in container.sections.items() if name not in (RAW, OFFSETS)}
        self.small = {name: edits[name](data) if name in edits else data for name, data in small.items()}
        header, at = read_delimited(self.raw.data, len(BLOCK_MAGIC))
        target, options = editors.create_target_machine_editor(self.redaction), edits[OPTIONS]
        self.header = editors.create_message_fields_editor("CaptureHeader", targets=target, options=options)(
            bytes(header)
        )
        self.stream = bytes(read_delimited(self.raw.data, at)[0])
        self.processes: dict[int, set[int]] = {}
        self.environments = self._collect_names_and_environment_ids()
        self.outputs: set[int] = set()
        self.strings, self.strings_end = self._collect_names_and_string_blocks()
        self.overwriter = Overwriter(self.redaction, self.budget, self.redaction.build_matcher())

    def write(self, out: BinaryIO) -> None:
        """Write the redacted report. The section of offsets follows the raw data, which determines the offsets."""
        out.write(self.lead)
        contents: list[bytes] = []
        offsets = b""
        for name in self._list_section_names():
            at = out.tell()
            if name == RAW:
                offsets = self._write_raw_data_and_encode_offsets(out)
            else:
                out.write(offsets if name == OFFSETS else self.overwriter.overwrite_private_values(self.small[name]))
            contents.append(_encode_contents_entry(name, at, out.tell() - at))
        at = out.tell()
        out.writelines(contents)
        out.write(TAIL.pack(at, END))

    def _check_string_count(self, file_size: int) -> None:
        """Raise an error if the report declares too many strings for the size of its file.

        Raises:
            Damage: The number of strings exceeds the limit for a file of this size.
        """
        declared = self.raw.stream.int_value(_STREAM.string_count) or 0
        if declared > BASE_STRINGS + file_size:
            raise Damage(
                f"the report declares {declared} strings, but tracekit supports at most {BASE_STRINGS + file_size} "
                f"in a file of {file_size} bytes"
            )

    def _list_section_names(self) -> list[str]:
        """Return the names of the sections in the order in which the copy contains them.

        This is the order of the original file, because nsys requires the sections in the order of the table of
        contents. However, the section of offsets always follows the raw data, which determines the offsets.
        """
        names = sorted(self.container.sections, key=lambda name: self.container.offsets[name])
        if OFFSETS in names[: names.index(RAW)]:
            names.remove(OFFSETS)
            names.insert(names.index(RAW) + 1, OFFSETS)
        return names

    def _write_raw_data_and_encode_offsets(self, out: BinaryIO) -> bytes:
        """Write the redacted raw data, and return the bytes of the section that holds the new offsets."""
        raw, begin, overwritten = self.raw, out.tell() + len(BLOCK_MAGIC), self.overwriter.overwrite_private_values
        out.write(BLOCK_MAGIC + encode_delimited(overwritten(self.header)) + encode_delimited(overwritten(self.stream)))
        event_blocks = self._search_blocks(raw.blocks, self.overwriter.find_private_value_spans)
        out.writelines(self._compress_if_changed(b.block, b.body, self._redact_events_block(b)) for b in event_blocks)
        moved = {_OFFSETS.strings: out.tell() - begin}
        firsts = dict(self.strings)
        for searched in self._search_blocks(list(firsts), self.overwriter.find_private_value_spans):
            edited_block = self._redact_strings_block(searched, firsts[searched.block])
            out.write(self._compress_if_changed(searched.block, searched.body, edited_block))
        places = self.container.read_section(OFFSETS)
        schema = Message(places).int_value(_OFFSETS.payload_schemas)
        end = len(raw.data) if schema is None else schema + len(BLOCK_MAGIC)
        at = self.strings_end
        trailer = editors.create_trailer_editor(self.redaction)
        while at < end:
            message, at = read_delimited(raw.data, at)
            self.budget.deduct_steps()
            out.write(encode_delimited(overwritten(trailer(bytes(message)))))
        moved[_OFFSETS.payload_schemas] = out.tell() - begin
        if schema is not None:
            block = raw.read_block_at(end)
            body = self._decompress(block)
            out.write(self._compress_if_changed(block, body, overwritten(body)))
            out.write(overwritten(bytes(raw.data[block.offset + block.packed :])))
        return edit_message(
            bytes(places), lambda p, v: encode_varint(moved[p.number]) if _holds_changed_offset(p, moved) else v
        )

    def _compress_if_changed(self, block: Block, body: bytes, redacted: bytes) -> bytes:
        """Return the compressed block of a redacted message, or the original block if the message is unchanged."""
        if redacted != body:
            return compress_block(redacted)
        head = encode_varint(block.packed) + encode_varint(block.size)
        return head + bytes(self.raw.data[block.offset : block.offset + block.packed])

    def _decompress(self, block: Block) -> bytes:
        """Return the decompressed bytes of a block, and deduct the steps for decompression from the step budget."""
        self.budget.deduct_steps(block.size // DECOMPRESSED_BYTES_PER_STEP)
        return bytes(self.raw.decompress(block))

    def _search_blocks(
        self, blocks: Iterable[Block], find_candidates: Callable[[bytes], list[Candidate]]
    ) -> Iterator[_SearchedBlock]:
        """Yield each block with its intervals that may hold private values."""
        for items, candidates in search_in_batches(((b, self._decompress(b)) for b in blocks), find_candidates):
            yield from (_SearchedBlock(*item, candidates.get(nth, [])) for nth, item in enumerate(items))

    def _collect_names_and_environment_ids(self) -> set[int]:
        """Collect private names from environment variables in events, and return the ids of environment strings.

        The indices of the events that contain processes to redact are added to the attribute ``processes``.

        Returns:
            The ids of the strings that hold the environment variables of processes.
        """
        environments: set[int] = set()
        for block, body, spans in self._search_blocks(self.raw.blocks, self.budget.find_environment_candidates):
            keys = list(_find_occurrences(body, editors.PROCESS_KEY))
            if not keys and not spans:
                continue
            entries = BlockEntries.parse(body)
            for nth in entries.find_entry_indices_at(keys):
                event = self._read_entry(entries, nth)
                if entries.numbers[nth] == EVENT and editors.PROCESS_KEY in event:
                    processes = editors.ProcessesOfEvent.parse(event)
                    environments.update(processes.environments)
                    if processes.need_edit:
                        self.processes.setdefault(block.offset, set()).add(nth)
            for nth in entries.find_entry_indices_at(start for start, _, _ in spans):
                event = self._read_entry(entries, nth)
                for start, end, _ in find_innermost_fields(
                    event, entries.select_spans_starting_in_entry(nth, spans), self.budget
                ):
                    self.redaction.collect_names_from_string(event[start:end])
        return environments

    def _read_entry(self, entries: BlockEntries, entry_index: int) -> bytes:
        """Return the bytes of an entry, and deduct the steps for parsing them from the step budget."""
        event = entries[entry_index]
        self.budget.deduct_string_steps(MESSAGE_COST * len(event))
        return event

    def _collect_names_and_string_blocks(self) -> tuple[list[tuple[Block, int]], int]:
        """Collect private names from environment variables in strings, and return the blocks of strings.

        The ids of the strings that programs printed are added to the attribute ``outputs``.

        Returns:
            The blocks of strings, each with the id of its first string, and the offset at which the last block ends.
        """
        blocks: list[tuple[Block, int]] = []
        at, have, string_ids = self.raw.strings_offset, 0, self.raw.stream.int_value(_STREAM.string_count) or 0
        while have < string_ids:
            block = self.raw.read_block_at(at)
            blocks.append((block, have))
            self.budget.deduct_steps()
            entries = BlockEntries.parse(self._decompress(block))
            is_string = entries.numbers == STRING
            self._collect_names_from_block(entries, np.cumsum(is_string) - 1 + have)
            have += int(np.count_nonzero(is_string))
            at = block.offset + block.packed
        return blocks, at

    def _collect_names_from_block(self, entries: BlockEntries, ids: Int64Array) -> None:
        """Collect private names from a block of strings.

        Args:
            entries: The entries of the block.
            ids: The string id of each entry. An entry that is not a string has the id of the last string before it.
        """
        for nth in np.flatnonzero(entries.numbers == STREAM).tolist():
            self.outputs.update(Message(memoryview(self._read_entry(entries, nth))).int_values(_CONTENT))
        zeros = np.flatnonzero(np.frombuffer(entries.body, np.uint8) == 0)
        environments = [
            start for start, _, _ in self.budget.find_environment_candidates(entries.body, include_homes=True)
        ]
        known = self._find_string_indices(entries, ids, self.environments)
        for nth in sorted(
            {*entries.find_entry_indices_at(zeros), *entries.find_entry_indices_at(environments), *known}
        ):
            text = entries[nth]
            self.budget.deduct_string_steps(len(text))
            if entries.numbers[nth] != STRING:
                continue
            self.redaction.collect_names_from_string(text)
            if is_environment(text):
                self.environments.add(int(ids[nth]))
            elif nth in known:
                self.redaction.collect_names(ENVIRONMENT, text)

    def _find_string_indices(self, entries: BlockEntries, ids_by_entry: Int64Array, wanted_ids: set[int]) -> set[int]:
        """Return the indices of the entries of a block that are strings with one of the given ids."""
        if not len(ids_by_entry) or not wanted_ids:
            return set()
        first, last = int(ids_by_entry[0]), int(ids_by_entry[-1])
        return {
            int(nth)
            for number in wanted_ids
            if max(first, 0) <= number <= last
            for nth in [np.searchsorted(ids_by_entry, number)]
            if entries.numbers[nth] == STRING
        }

    def _redact_strings_block(self, searched_block: _SearchedBlock, first_string_id: int) -> bytes:
        """Redact the strings of a block, and return the redacted bytes of the block."""
        _, body, spans = searched_block
        if not spans and not self.outputs and not self.environments:
            return body
        entries = self.overwriter.overwrite_unknown_fields(BlockEntries.parse(body), spans)
        ids = np.cumsum(entries.numbers == STRING) - 1 + first_string_id
        outputs, environments = (
            self._find_string_indices(entries, ids, string_ids) for string_ids in (self.outputs, self.environments)
        )
        chosen = {*outputs, *environments, *entries.find_entry_indices_at(start for start, _, _ in spans)}

        def redact_string(entry_index: int, value: bytes) -> bytes:
            if entry_index in outputs:
                return self.redaction.replace_value(OUTPUT, value)
            if entry_index in environments:
                return self.redaction.replace_value(ENVIRONMENT, value)
            inside = entries.select_spans_starting_in_entry(entry_index, spans)
            if entries.numbers[entry_index] != STRING:
                return self.overwriter.overwrite_private_values(value, inside)
            return self.overwriter.overwrite_string(value, join_masks(inside))

        return edit_entries(entries, sorted(chosen), redact_string, self.budget)

    def _redact_events_block(self, searched_block: _SearchedBlock) -> bytes:
        """Redact the events of a block, and return the redacted bytes of the block."""
        block, body, spans = searched_block
        processes = self.processes.get(block.offset, set())
        if not processes and not spans:
            return body
        entries = self.overwriter.overwrite_unknown_fields(BlockEntries.parse(body), spans)
        process = editors.create_message_fields_editor("Event", process=editors.create_process_editor(self.redaction))

        def redact_event(entry_index: int, value: bytes) -> bytes:
            inside = entries.select_spans_starting_in_entry(entry_index, spans)
            if entry_index in processes:
                self.budget.deduct_string_steps(MESSAGE_COST * len(value))
                shorter = process(value)
                inside, value = self.overwriter.find_private_value_spans(shorter), shorter
            return self.overwriter.overwrite_private_values(value, inside)

        chosen = processes.union(entries.find_entry_indices_at(start for start, _, _ in spans))
        return edit_entries(entries, sorted(chosen), redact_event, self.budget)


def _encode_contents_entry(name: str, offset: int, size: int) -> bytes:
    """Encode the entry for a section in the table of contents of a report."""
    fields = load_fields("Section")
    entry = (
        encode_field(fields.name, name.encode()) + encode_field(fields.offset, offset) + encode_field(fields.size, size)
    )
    return encode_field(load_fields("Contents").sections, entry)


def _find_occurrences(data: bytes, needle: bytes) -> Iterator[int]:
    """Yield every offset at which ``needle`` occurs in ``data``."""
    at = data.find(needle)
    while at >= 0:
        yield at
        at = data.find(needle, at + 1)


def _holds_changed_offset(field: FieldSpan, new_offsets_by_field_number: dict[int, int]) -> bool:
    """Return whether a field holds an offset that has a new value in ``new_offsets_by_field_number``."""
    return field.kind == VARINT and field.number in new_offsets_by_field_number
