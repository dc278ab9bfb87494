"""Mutated reports of Nsight Systems: real ones of several releases cut down to some events of each kind."""

from __future__ import annotations

import functools
import hashlib
import random
import struct
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.builders.nsys_rep import LZ4, MAGIC, RAW_MAGIC, delimited, message, packed, take_apart
from tests.builders.nsys_rep_events import made_report
from tests.fuzz.changes import DELIMITED, edge, fields, of_bytes, of_message, varint
from tracekit.readers.nsys.mapping import SOURCES
from tracekit.readers.nsys_rep.container import OFFSETS, RAW, Container, RawData
from tracekit.readers.nsys_rep.entries import count_block_events
from tracekit.registry.source import Source

FORMAT, SUFFIX = "nsys-rep", ".nsys-rep"
TABLES = tuple(SOURCES)
ROOT = Path(__file__).parents[2]
CORPUS = ROOT.parent / "shared" / "corpus"
FIXTURES = (
    "cpu_only",
    "graph_node",
    "nvtx_features",
    "osrt_libs",
    "omp",
    "um",
    "mpi_rank0",
    "gpu_metrics",
    "payloads/every_type",
    "payloads/xla",
    "ddp2",
)
# Public reports by the beginning of their SHA-256, each of another release, from 2020.3 to 2026.2.
PUBLIC = (
    *("cf0c8122486972e1", "fee83636f816d687", "a32eb9279015ada3", "f793158712455fb9", "ef65216da03babe1"),
    *("fcfa16a62bd428c5", "0fcb19774758d448", "8f376ac19b77185e", "6046ee3c3cfe1560", "aa4daa2850fc9ffe"),
)
OF_EACH_KIND, OF_EACH_FIELD = 4, 20
LONGEST_STRING, LONGEST_FACT = 48, 2000
MANY = 200_000
Pieces = tuple[bytes, ...]
Change = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True)
class Report:
    """A report in parts, all of them unpacked.

    Attributes:
        name: What it is called in messages.
        blocks: Entries of each block of events.
        strings: Entries of each block of strings.
        header: What was captured.
        stream: Counts of what follows.
        rest: Messages after the strings: names of threads, the machine.
        schemas: Schemas of NVTX payloads; None if there are none.
        sections: The other sections of the file by name.
    """

    name: str
    blocks: Sequence[Pieces]
    strings: Sequence[Pieces]
    header: bytes
    stream: bytes
    rest: Pieces
    schemas: bytes | None
    sections: dict[str, bytes]

    def pack(self, **lies: object) -> bytes:
        return Packing(**lies).file(self)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Packing:
    """How a report is packed, and where that lies.

    Attributes:
        blocks: Packed blocks of events, if they are not those of the report.
        strings: Packed blocks of strings, likewise.
        offsets: Added to the place of strings and of schemas that the file tells; None: it does not tell them.
        contents: Changes the table of contents.
        end: Replaces the end of the file: the place of its table of contents and its mark.
    """

    blocks: Sequence[bytes] | None = None
    strings: Sequence[bytes] | None = None
    offsets: tuple[int, int] | None = (0, 0)
    contents: Callable[[bytes], bytes] = bytes
    end: Callable[[bytes], bytes] = bytes

    def file(self, report: Report) -> bytes:
        head = RAW_MAGIC + delimited(report.header) + delimited(report.stream)
        head += b"".join(packed_all(report.blocks) if self.blocks is None else self.blocks)
        strings = b"".join(packed_all(report.strings) if self.strings is None else self.strings)
        raw = head + strings + b"".join(map(delimited, report.rest))
        told = message((1, "lz4"))
        if self.offsets is not None:
            told += message((2, len(head) - len(RAW_MAGIC) + self.offsets[0]))
        if self.offsets is not None and report.schemas is not None:
            told += message((3, len(raw) - len(RAW_MAGIC) + self.offsets[1]))
        if report.schemas is not None:
            raw += packed(report.schemas)
        return self._container({RAW: raw, **report.sections, OFFSETS: told})

    def _container(self, sections: dict[str, bytes]) -> bytes:
        out, contents = MAGIC, b""
        for name, data in sections.items():
            contents += message((1, message((1, name), (2, len(out)), (3, len(data)))))
            out += data
        return out + self.contents(contents) + self.end(struct.pack("<Q", len(out)) + b"U3w[END]")


def packed_all(blocks: Sequence[Pieces]) -> list[bytes]:
    return [packed(b"".join(pieces)) for pieces in blocks]


def cut_down(path: Path, name: str) -> Report:
    """Take a real report apart and keep some events of each kind; strings keep their numbers and lose their tails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts, opened = take_apart(path), Container(Source(path))
        raw = RawData(opened, count_block_events)
    seen: Counter[tuple[int, ...]] = Counter()
    blocks = [tuple(kept(block, seen)) for block in parts.blocks]
    strings = [tuple(shortened(block)) for block in parts.strings]
    listed = raw._offsets.int_value(3)
    schemas = None if listed is None else bytes(raw.decompress(raw.read_block_at(listed + len(RAW_MAGIC))))
    made = Report(
        name,
        [b for b in blocks if b],
        strings,
        parts.header,
        parts.stream or b"",
        tuple(b"".join(some(m)) for m in parts.rest),
        schemas,
        {n: b"".join(some(bytes(d))) for n, d in opened.sections.items() if n not in (RAW, OFFSETS)},
    )
    return replace(made, stream=counted(made))


def kept(block: bytes, seen: Counter[tuple[int, ...]]) -> Iterator[bytes]:
    """Keep the entries of a block whose kind was not seen often; a kind is its type and which fields it has."""
    for part in fields(block) or ():
        inner = fields(part.value) or []
        below = [f.number for outer in inner if outer.kind == DELIMITED for f in fields(outer.value) or ()]
        kind = (part.number, *(f.number for f in inner), *(i for f in inner[:1] for i in f.value[:2]), -1, *below)
        seen[kind] += 1
        if seen[kind] <= OF_EACH_KIND:
            yield part.pack()


def some(whole: bytes) -> Iterator[bytes]:
    """Keep some fields of each number, and none that is very long."""
    seen: Counter[int] = Counter()
    for part in fields(whole) or ():
        seen[part.number] += 1
        if seen[part.number] <= OF_EACH_FIELD and len(part.value) <= LONGEST_FACT:
            yield part.pack()


def shortened(block: bytes) -> Iterator[bytes]:
    for part in fields(block) or ():
        text = part.number == 1 and part.kind == DELIMITED and not part.value.startswith(b"{")
        yield part._replace(value=part.value[:LONGEST_STRING]).pack() if text else part.pack()


def counted(report: Report) -> bytes:
    """Say how many events there are now; all else of the stream stays."""
    events = sum(map(len, report.blocks))
    parts = [f for f in fields(report.stream) or () if f.number not in (1, 15)]
    return message((1, events)) + b"".join(f.pack() for f in parts)


@functools.cache
def own_reports() -> list[Report]:
    """The reports of this repository that are mutated, and one that is made of every declared message."""
    found = [cut_down(ROOT / "fixtures" / f"{name}.nsys-rep", name) for name in FIXTURES]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.nsys-rep"
        path.write_bytes(made_report())
        return [*found, cut_down(path, "every message")]


@functools.cache
def reports() -> list[Report]:
    """The reports that are mutated; those beside the checkout too, if they are there."""
    suffixes = (".nsys-rep", ".qdrep")
    public = [p for p in sorted(CORPUS.glob("nsys_*/**/*")) if p.suffix in suffixes] if CORPUS.is_dir() else []
    digests = {hashlib.sha256(p.read_bytes()).hexdigest()[:16]: p for p in public}
    return own_reports() + [cut_down(digests[d], d) for d in PUBLIC if d in digests]


def rarely_many(dice: random.Random, *numbers: int) -> int:
    """Throw one of some numbers, mostly one of the first two: large files take long to make and to read."""
    return dice.choice(numbers if dice.random() < 0.15 else numbers[:2])


def one_of(parts: Sequence[bytes], dice: random.Random, change: Change) -> Pieces:
    at = dice.randrange(len(parts))
    return tuple(change(p, dice) if i == at else p for i, p in enumerate(parts))


def one_block(blocks: Sequence[Pieces], dice: random.Random, change: Callable[[Pieces], Pieces]) -> list[Pieces]:
    at = dice.randrange(len(blocks))
    return [change(b) if i == at else b for i, b in enumerate(blocks)]


def whole_file(report: Report, dice: random.Random) -> bytes:
    """Change bytes anywhere but in the mark of a whole report."""
    file = report.pack()
    return of_bytes(file[:-16], dice, keep_size=dice.random() < 0.8) + file[-16:]


def truncated(report: Report, dice: random.Random) -> bytes:
    """Cut a report short; most of them get a table of contents again."""
    file = report.pack()
    cut = file[: dice.randrange(len(MAGIC), len(file))]
    if dice.random() < 0.2:
        return cut
    said = message((1, message((1, RAW), (2, len(MAGIC)), (3, len(cut) - len(MAGIC)))))
    return cut + said + struct.pack("<Q", len(cut)) + b"U3w[END]"


def contents(report: Report, dice: random.Random) -> bytes:
    """Lie in the table of contents, and about where it is."""
    if dice.random() < 0.8:
        return report.pack(contents=lambda c: of_message(c, dice))
    place = struct.pack("<Q", edge(dice))
    return report.pack(end=lambda e: place + e[8:])


def places(report: Report, dice: random.Random) -> bytes:
    """Lie about where strings and schemas begin, or do not say it."""
    steps = (0, 1, -1, 9, -9, 1000, -1000, 1 << 31, edge(dice))
    return report.pack(offsets=dice.choice((None, (dice.choice(steps), dice.choice(steps)))))


def counts(report: Report, dice: random.Random) -> bytes:
    """Lie about how much there is."""
    parts = fields(report.stream) or []
    lies = [f._replace(value=varint(edge(dice))) if f.kind == 0 and dice.random() < 0.5 else f for f in parts]
    offsets = None if dice.random() < 0.3 else (0, 0)
    return replace(report, stream=b"".join(f.pack() for f in lies)).pack(offsets=offsets)


def block_sizes(report: Report, dice: random.Random) -> bytes:
    """Lie about how large blocks are, packed and unpacked."""
    made: dict[str, list[bytes]] = {"blocks": packed_all(report.blocks), "strings": packed_all(report.strings)}
    name = dice.choice([n for n, blocks in made.items() if blocks])
    at = dice.randrange(len(made[name]))
    pieces = {"blocks": report.blocks, "strings": report.strings}[name][at]
    whole = delimited(b"".join(pieces))
    data = LZ4.compress(whole, asbytes=True)
    sizes = [len(data), len(whole)]
    sizes[dice.randrange(2)] = dice.choice((edge(dice), len(whole) + dice.choice((-1, 1, 100, 1 << 20, 1 << 24))))
    made[name][at] = b"".join(varint(n, padded=dice.choice((0, 0, 1))) for n in sizes) + data
    return report.pack(**made)


def message_sizes(report: Report, dice: random.Random) -> bytes:
    """Lie about the size of the message in a block."""
    whole = b"".join(report.blocks[0]) if report.blocks else b""
    lie = varint(dice.choice((edge(dice), len(whole) + dice.choice((-1, 1, 50))))) + whole
    data = LZ4.compress(lie, asbytes=True)
    return report.pack(blocks=[varint(len(data)) + varint(len(lie)) + data, *packed_all(report.blocks[1:])])


def compressed(report: Report, dice: random.Random) -> bytes:
    """Change compressed bytes; their sizes are right."""
    blocks = [of_bytes(b, dice, keep_size=True) if dice.random() < 0.7 else b for b in packed_all(report.blocks)]
    strings = [of_bytes(b, dice, keep_size=True) if dice.random() < 0.3 else b for b in packed_all(report.strings)]
    return report.pack(blocks=blocks, strings=strings)


def repeated_blocks(report: Report, dice: random.Random) -> bytes:
    """Repeat blocks; the counts are right, so that all of them are read."""
    times = rarely_many(dice, 2, 10, 400)
    more = replace(report, blocks=list(report.blocks) * times)
    if dice.random() < 0.3:
        more = replace(more, strings=list(report.strings) * min(times, 10))
    return replace(more, stream=counted(more)).pack(offsets=dice.choice((None, (0, 0), (0, 0))))


def many_entries(report: Report, dice: random.Random) -> bytes:
    """Repeat one entry very often: little in the file, much in memory."""
    if not report.blocks:
        return repeated_blocks(report, dice)
    entry = dice.choice(dice.choice(list(report.blocks)))
    times = min(rarely_many(dice, 30, 1000, 1 << 16, MANY), (4 << 20) // len(entry))
    more = replace(report, blocks=[*report.blocks, (entry,) * times])
    return replace(more, stream=counted(more)).pack()


def empty_entries(report: Report, dice: random.Random) -> bytes:
    """Put the smallest things there are, very many of them, into blocks of events or of strings."""
    tiny = dice.choice((b"\x0a\x00", b"\x12\x00", b"\x0a\x02\x08\x00", b"\x08\x00", b"\x0a\x01a"))
    block = (tiny * rarely_many(dice, 10, 1000, MANY),) * dice.choice((1, 1, 5))
    which = dice.choice(("blocks", "strings"))
    listed = {"blocks": report.blocks, "strings": report.strings}[which]
    more = replace(report, **{which: [*listed, block]})  # type: ignore[arg-type]
    said = dice.choice((len(block[0]) // len(tiny), 1 << 40))
    return replace(more, stream=message((1, said), (3, said), (9, "lz4"))).pack()


def event_values(report: Report, dice: random.Random) -> bytes:
    keep = functools.partial(of_bytes, keep_size=True)
    return replace(report, blocks=one_block(report.blocks, dice, lambda b: one_of(b, dice, keep))).pack()


def event_bytes(report: Report, dice: random.Random) -> bytes:
    return replace(report, blocks=one_block(report.blocks, dice, lambda b: one_of(b, dice, of_bytes))).pack()


def event_fields(report: Report, dice: random.Random) -> bytes:
    """Change fields of events; all sizes around them are right."""
    blocks = report.blocks
    for _ in range(dice.choice((1, 3, 10))):
        blocks = one_block(blocks, dice, lambda b: one_of(b, dice, of_message))
    return replace(report, blocks=blocks).pack()


def event_order(report: Report, dice: random.Random) -> bytes:
    """Shuffle, repeat and leave out events, and put them into several blocks."""
    pieces = [p for b in report.blocks for p in b]
    chosen = dice.choices(pieces, k=dice.randrange(2 * len(pieces))) if pieces else []
    cut = dice.randrange(len(chosen) + 1)
    more = replace(report, blocks=[tuple(b) for b in (chosen[:cut], chosen[cut:]) if b])
    return replace(more, stream=counted(more)).pack()


def mixed(report: Report, dice: random.Random) -> bytes:
    """Put parts of a report of another release in."""
    other = dice.choice(reports())
    taken = {n: getattr(other, n) for n in PARTS if dice.random() < 0.4}
    more = replace(report, **taken)
    if dice.random() < 0.5:
        more = replace(more, blocks=[*report.blocks, *other.blocks])
    return replace(more, stream=counted(more)).pack()


def string_bytes(report: Report, dice: random.Random) -> bytes:
    return replace(report, strings=one_block(report.strings, dice, lambda b: one_of(b, dice, of_bytes))).pack()


def string_fields(report: Report, dice: random.Random) -> bytes:
    strings = report.strings
    for _ in range(dice.choice((1, 5, 20))):
        strings = one_block(strings, dice, lambda b: one_of(b, dice, of_message))
    return replace(report, strings=strings).pack()


def headers(report: Report, dice: random.Random) -> bytes:
    header, stream = one_of((report.header, report.stream), dice, of_message)
    offsets = None if dice.random() < 0.1 else (0, 0)
    return replace(report, header=header, stream=stream).pack(offsets=offsets)


def header_bytes(report: Report, dice: random.Random) -> bytes:
    header, stream = one_of((report.header, report.stream), dice, of_bytes)
    return replace(report, header=header, stream=stream).pack()


def machine(report: Report, dice: random.Random) -> bytes:
    rest = report.rest
    for _ in range(dice.choice((1, 3, 10))):
        rest = one_of(rest, dice, of_message)
    return replace(report, rest=rest).pack()


def machine_bytes(report: Report, dice: random.Random) -> bytes:
    rest = one_of(report.rest, dice, of_bytes) if dice.random() < 0.7 else report.rest[dice.randrange(2) :]
    return replace(report, rest=rest).pack()


def facts(report: Report, dice: random.Random) -> bytes:
    change = dice.choice((of_bytes, of_message, of_message))
    sections = {n: change(d, dice) for n, d in report.sections.items() if dice.random() < 0.9}
    return replace(report, sections=sections).pack()


def payload_schemas(report: Report, dice: random.Random) -> bytes:
    """Change schemas of NVTX payloads; a report without gets those of another."""
    found = report.schemas or next(r.schemas for r in reports() if r.schemas)
    for _ in range(dice.choice((1, 3, 10))):
        found = of_message(found, dice)
    return replace(report, schemas=of_bytes(found, dice) if dice.random() < 0.1 else found).pack()


PARTS = ("strings", "header", "rest", "schemas", "sections")
MUTATIONS: tuple[Callable[[Report, random.Random], bytes], ...] = (
    *(whole_file, truncated, contents, places, counts, block_sizes, message_sizes, compressed, repeated_blocks),
    *(many_entries, empty_entries, event_values, event_values, event_bytes, event_fields, event_fields, event_fields),
    *(event_order, mixed, string_bytes, string_fields, headers, header_bytes, machine, machine, machine_bytes, facts),
    *(payload_schemas,),
)


def unharmed() -> bytes:
    return reports()[1].pack()


def made(case: int) -> tuple[str, bytes]:
    dice = random.Random(case)
    listed = reports()
    report, mutate = listed[case % len(listed)], MUTATIONS[case // len(listed) % len(MUTATIONS)]
    return f"{report.name}, {mutate.__name__}", mutate(report, dice)
