"""Reports redacted: what is private is gone from every section and block, and every other field is as it was."""

from __future__ import annotations

import random
import re
import sys
import time
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest
import tracekit as tk
from tests import fork_server
from tests.builders.nsys_rep import (
    CAPTURES,
    RAW_MAGIC,
    Parts,
    container,
    event,
    message,
    packed,
    strings,
    take_apart,
    varint,
)
from tests.builders.nsys_sqlite import untouched
from tests.helpers import number_pseudonyms
from tests.readers.test_nsys_rep_fuzz import CASES, MUTATIONS
from tracekit.errors import CorruptTraceError, TracekitError
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import Message
from tracekit.readers.nsys_rep.container import CLOCKS, OFFSETS, RAW, UI_DATA, Container, RawData
from tracekit.readers.nsys_rep.entries import count_block_events
from tracekit.readers.redaction import nsys_rep as redact
from tracekit.readers.redaction.nsys_rep.messages import iterate_field_spans
from tracekit.readers.redaction.pseudonyms import Pseudonyms
from tracekit.registry.source import Source

OWN = sorted(CAPTURES.glob("*.nsys-rep"))
needs_captures = pytest.mark.skipif(not OWN, reason="no captures beside the checkout")
OPTIONS, AGENTS = "Analysis Options Data", "Agent activity list"
KEY = b"0123456789abcdef"
HOST = re.compile(rb"redacted-[0-9a-f]{12}")
PID = 1 << 48 | 77 << 24

VARIABLES = [(30, message((1, "TOKEN"), (2, "s3cr3t-t0k3n"))), (30, message((1, "USER"), (2, "alice")))]
LAUNCH = message((1, 4), (10, "python3"), (11, "--password=hunter2"), (12, "/srv/project-x"), (13, "carol"), *VARIABLES)
ASKED = message((1, "Local (CLI)"), (9, "gpu17.cluster.example"), (26, LAUNCH), (32, 503))
ENVIRONMENT = b"PATH=/opt/alice/bin\0LOGNAME=dave\0TOKEN=s3cr3t-t0k3n\0"
NICS = message((1, message((1, 0), (2, "mlx5_0"), (6, 7766554433221100))))
MACHINE = message(
    (1, "gpu17.cluster.example"),
    (2, message(
        (1, message((1, 1), (2, "32"))),
        (1, message((1, 610), (2, ENVIRONMENT))),
        (1, message((1, 619), (2, "gpu17.cluster.example"))),
        (1, message((1, 882), (2, "#1 SMP alice@gpu17"))),
        (1, message((1, 910), (2, NICS))),
    )),
    (3, 1 << 48),
)  # fmt: skip
WITH = message((1, message((9, "gpu18"), (10, "gpu17"))), (10, "nsys profile --token=t0k3n"), (11, "/srv/project-x"),
               (61, "/srv/project-x/out"), (62, 1))  # fmt: skip
RAN = message((1, "python3"), (2, "--password=hunter2"), (3, "/srv/project-x"),
              (5, message((1, message((1, "A"), (2, "t0k3n"))))))  # fmt: skip
ACTIVITY = message((1, message((1, 5), (50, WITH))), (1, message((1, 6), (52, message((1, RAN))))))
UI = message(
    (2, "uuid"), (5, "gpu17.cluster.example"), (6, "2025.3.1.0-test"), (23, "/tmp/r.qdstrm"), (24, "gpu17"),
    (25, "nsys profile --token=t0k3n"), (40, "gpu17"),
)  # fmt: skip


def process(*fields: tuple[int, int | str]) -> bytes:
    return event(27, 113, (1, 5), (2, PID), *fields)


EVENTS = b"".join((
    process((5, "/srv/project-x/solver --password=hunter2"), (6, "solver"), (7, "/srv/project-x/solver"),
            (8, "/srv/project-x"), (9, "--password=hunter2"), (9, ""), (12, 1), (13, 2)),
    process((5, "./bin/worker"), (13, 4)),
    process((5, "python3"), (6, "python3")),
    event(59, 102, (1, 59), (2, 1), (7, "step of alice at /home/bob/a.py"), (9, PID), (10, 9)),
    event(59, 102, (1, 59), (2, 2), (7, "malice"), (9, PID), (10, 9)),
    event(49, 110, (1, message((1, 7))), (4, "dave and gpu17.cluster.example")),
    message((2, message((1, 1 << 48), (2, 5), (3, b"\x00\x01alice\x00\xff")))),
))  # fmt: skip
TEXTS = strings("zero", "of alice", ENVIRONMENT, "epoch 1 by alice\n", "ONE=variable") + message(
    (2, message((1, PID), (2, 0), (3, 3)))
)
SECRETS = (
    b"t0k3n", b"hunter2", b"cluster.example", b"gpu18", b"project-x", b"/opt/alice", b"/home/bob", b"dave", b"carol",
    b"epoch 1 by", varint(7766554433221100),
)  # fmt: skip
PLANTED = Parts(
    blocks=[EVENTS, event(59, 102, (1, 59), (2, 3), (7, "nothing private"), (9, PID), (10, 9))],
    strings=[TEXTS, strings("more", "LC_CTYPE=C.UTF-8")],
    header=message((1, MACHINE), (2, ASKED), (17, 5)),
    rest=[message((13, message((1, "stream of alice"), (4, 77))))],
    sections={
        UI_DATA: UI,
        OPTIONS: ASKED,
        AGENTS: ACTIVITY,
        "Telemetry": b"",
        "Other": message((1, "by alice"), (2, 7)),
    },
)


def written(folder: Path, data: bytes, name: str = "made.nsys-rep") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def redacted(path: Path, name: str = "redacted.nsys-rep") -> tuple[Path, dict[str, int]]:
    out = path.with_name(name)
    return out, tk.redact(path, out, overwrite=True)


def unpacked(path: Path) -> dict[str, bytes]:
    """Everything that a report holds: sections, parts of the raw data, unpacked blocks."""
    opened = Container(Source(path))
    raw = RawData(opened, count_block_events)
    found = {name: bytes(data) for name, data in opened.sections.items() if name not in (RAW, OFFSETS)}
    apart = take_apart(path)
    found |= {"header": apart.header, "stream": apart.stream or b""}
    found |= {f"events {i}": bytes(raw.decompress(b)) for i, b in enumerate(raw.blocks)}
    found |= {f"strings {i}": b for i, b in enumerate(apart.strings)}
    return found | {f"rest {i}": b for i, b in enumerate(apart.rest)}


def differing(before: bytes, after: bytes, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Paths of the fields that differ, as deep as both are messages."""
    try:
        mine, theirs = list(iterate_field_spans(before)), list(iterate_field_spans(after))
        assert mine
        assert [p.number for p in mine] == [p.number for p in theirs]
    except (Damage, AssertionError):
        yield path
        return
    for a, b in zip(mine, theirs, strict=True):
        if before[a.value_start : a.end] != after[b.value_start : b.end]:
            yield from differing(before[a.value_start : a.end], after[b.value_start : b.end], (*path, a.number))


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A report with secrets of every kind."""
    return written(tmp_path, PLANTED.pack())


def test_what_is_private_is_in_no_section_and_no_block_of_the_copy(planted: Path) -> None:
    before, (out, _) = b"".join(unpacked(planted).values()), redacted(planted)
    assert [s for s in SECRETS if s not in before] == []
    after = b"".join(unpacked(out).values())
    assert [s for s in SECRETS if s in after] == []
    assert after.count(b"alice") == after.count(b"malice") == 1


def test_counts_are_by_kind(planted: Path) -> None:
    assert redacted(planted)[1] == {
        "environment": 9,
        "command line": 20,
        "host name": 9,
        "user name": 0,
        "program output": 1,
        "hardware address": 1,
        "unique id": 0,
        "PCI address": 0,
        "network address": 0,
        "e-mail address": 0,
        "secret": 0,
        "path": 0,
        "name in another text": 7,
    }


def test_every_other_field_is_as_it_was(planted: Path) -> None:
    before, after = unpacked(planted), unpacked(redacted(planted)[0])
    assert list(before) == list(after)
    launch = {(10,), (11,), (12,), (13,), (30, 1), (30, 2)}
    options = {(9,)} | {(26, *p) for p in launch}
    found = {name: set(differing(before[name], after[name])) for name in before if before[name] != after[name]}
    assert found == {
        UI_DATA: {(5,), (24,), (25,), (40,)},
        OPTIONS: options,
        AGENTS: {(1, 50, 1, 9), (1, 50, 1, 10), (1, 50, 10), (1, 50, 11), (1, 50, 61)}
        | {(1, 52, 1, n) for n in (1, 2, 3)}
        | {(1, 52, 1, 5, 1, 1), (1, 52, 1, 5, 1, 2)},
        "Other": {(1,)},
        "header": {(1, 1), (1, 2, 1, 2), (1, 2, 1, 2, 1, 6)} | {(2, *p) for p in options},
        "events 0": {(1, 113, n) for n in (5, 7, 8, 9)} | {(1, 102, 7), (1, 110, 4), (2, 3)},
        "strings 0": {(1,)},
        "strings 1": {(1,)},
        "rest 0": {(13, 1)},
    }


def test_what_stands_in_the_place_of_what_was_private(planted: Path) -> None:
    after = unpacked(redacted(planted)[0])
    facts, options = (Message(memoryview(after[name])) for name in (UI_DATA, OPTIONS))
    hosts = [bytes(m.bytes_value(n)) for m, ns in ((facts, (5, 24, 40)), (options, (9,))) for n in ns]
    assert all(HOST.fullmatch(h) for h in hosts)
    assert hosts[0] == hosts[3] != hosts[1] == hosts[2]
    assert Message(memoryview(after["strings 0"])).bytes_values(1) == [b"zero", b"of xxxxx", b"", b"", b""]
    assert Message(memoryview(after["strings 1"])).bytes_values(1) == [b"more", b""]
    events = Message(memoryview(after["events 0"])).messages(1)
    texts = {n: [bytes(p) for e in events for m in e.messages(113) for p in m.bytes_values(n)] for n in (5, 6, 7, 8, 9)}
    assert texts == {5: [b"", b"worker", b"python3"], 6: [b"solver", b"python3"], 7: [b""], 8: [b""], 9: [b"", b""]}
    ranges = [m.text(7) for e in events for m in e.messages(102)]
    assert ranges == ["step of xxxxx at /home/xxx/a.py", "malice"]
    assert [m.text(4) for e in events for m in e.messages(110)] == ["xxxx and xxxxxxxxxxxxxxxxxxxxx"]
    header = Message(memoryview(after["header"])).message(1).message(2).messages(1)
    assert [m.bytes_value(2) for m in header][:4] == [b"32", b"", hosts[0], b"#1 SMP xxxxx@xxxxx"]
    assert header[4].message(2).message(1).int_value(6) == 0


def test_only_what_changes_is_packed_anew(planted: Path) -> None:
    out, _ = redacted(planted)
    unchanged = packed(PLANTED.blocks[1])
    assert unchanged in planted.read_bytes()
    assert unchanged in out.read_bytes()


def test_without_anything_private_the_copy_is_the_same_file(tmp_path: Path) -> None:
    facts = {UI_DATA: message((6, "2025.3"))}
    path = written(tmp_path, Parts([PLANTED.blocks[1]], [strings("a", "b")], sections=facts).pack())
    out, counts = redacted(path)
    assert out.read_bytes() == path.read_bytes()
    assert not any(counts.values())


def test_a_second_time_changes_nothing(planted: Path) -> None:
    once, _ = redacted(planted)
    twice, counts = redacted(once, "twice.nsys-rep")
    assert not any(counts.values())
    assert twice.read_bytes() == once.read_bytes()


def test_sections_keep_their_order_without_gaps(planted: Path) -> None:
    """nsys refuses a report whose sections are not listed as they lie."""
    before, after = (Container(Source(p)) for p in (planted, redacted(planted)[0]))
    names = list(after.sections)
    assert names == list(before.sections)
    ends = [after.offsets[n] + len(after.sections[n]) for n in names]
    assert [after.offsets[n] for n in names[1:]] == ends[:-1]
    assert after.offsets[names[0]] == before.offsets[names[0]] == 31


@needs_captures
@pytest.mark.parametrize("report", OWN, ids=lambda p: p.stem)
def test_sections_of_real_reports_keep_their_order_without_gaps(report: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.nsys-rep"
    tk.redact(report, out)
    before, after = (Container(Source(p)) for p in (report, out))
    for opened in (before, after):
        ends = [opened.offsets[n] + len(data) for n, data in opened.sections.items()]
        assert list(opened.offsets.values())[1:] == ends[:-1]
    assert list(before.sections) == list(after.sections)


def test_reports_that_do_not_tell_where_strings_begin(tmp_path: Path) -> None:
    path = written(tmp_path, replace(PLANTED, offsets=False).pack())
    told = written(tmp_path, PLANTED.pack(), "told.nsys-rep")
    outs = [(p, p.with_name(f"{p.stem}_redacted.nsys-rep")) for p in (path, told)]
    first, second = ((tk.redact(p, out, key=KEY), unpacked(out)) for p, out in outs)
    assert first == second


def test_schemas_of_payloads_after_the_strings_are_moved_and_searched(tmp_path: Path) -> None:
    schema = message((3, message((1, PID), (2, message((1, 5), (5, "payload of alice"))))))
    raw, strings_at = PLANTED.raw(map(packed, PLANTED.blocks))
    offsets = message((1, "lz4"), (2, strings_at - len(RAW_MAGIC)), (3, len(raw) - len(RAW_MAGIC)))
    path = written(tmp_path, container({OFFSETS: offsets, RAW: raw + packed(schema), **PLANTED.sections}))
    out, _ = redacted(path)
    opened = Container(Source(out))
    data = RawData(opened, count_block_events)
    places = Message(opened.read_section(OFFSETS))
    assert list(opened.sections) == [RAW, OFFSETS, *PLANTED.sections]
    assert places.text(1) == "lz4"
    block = data.read_block_at((places.int_value(3) or 0) + len(RAW_MAGIC))
    assert bytes(data.decompress(block)) == schema.replace(b"alice", b"xxxxx")
    assert block.offset + block.packed == len(data.data)
    assert data.strings.to_pylist() == [b"zero", b"of xxxxx", b"", b"", b"", b"more", b""]
    assert data.trailer.message(13).text(1) == "stream of xxxxx"


def test_a_title_that_looks_like_a_message_loses_its_names_all_the_same(tmp_path: Path) -> None:
    tricky = [b"\x0a\x05alice", b"b\x05alice:\x04dave", b"\x08alice", b"j\x0balice alice", b"alice"]
    block = b"".join(event(59, 102, (1, 59), (2, 3), (7, t), (9, PID), (10, 9)) for t in tricky)
    out, _ = redacted(written(tmp_path, replace(PLANTED, blocks=[block]).pack()))
    body = unpacked(out)["events 0"]
    assert b"alice" not in body
    assert b"dave" not in body
    assert len(body) == len(block)


@needs_captures
@pytest.mark.parametrize("report", OWN, ids=lambda p: p.stem)
def test_of_real_reports_only_what_is_private_changes(report: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.nsys-rep"
    with untouched(report):
        tk.redact(report, out)
    before, after = unpacked(report), unpacked(out)
    found = {name: set(differing(before[name], after[name])) for name in before if before[name] != after[name]}
    options = {(9,), (26, 10), (26, 11), (26, 12), (26, 30, 1), (26, 30, 2), (77,)}
    events = {p for name, paths in found.items() if name.startswith("events") for p in paths}
    assert {n for n in found if not n.startswith(("events", "strings"))} == {
        UI_DATA,
        OPTIONS,
        AGENTS,
        "header",
        "rest 1",
    }
    assert found[UI_DATA] == {(2,), (5,), (24,), (25,), (40,)}
    assert found[OPTIONS] <= options
    gpus = {(1, 2, 1, 2, 1, 3), (1, 2, 1, 2, 1, 5)}
    assert found["header"] <= {(1, 2, 1, 2), (44, 2, 1, 2)} | gpus | {(2, *p) for p in options}
    assert found["rest 1"] == {(1, 2, 7, 3), (1, 2, 7, 5)}
    assert events <= {(1, 108, 40, 6), *((1, 113, n) for n in (5, 7, 8, 9))}
    assert {p for name, paths in found.items() if name.startswith("strings") for p in paths} <= {(1,)}


@needs_captures
@pytest.mark.parametrize("report", OWN, ids=lambda p: p.stem)
def test_of_real_reports_nothing_private_is_left(report: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.nsys-rep"
    tk.redact(report, out)
    after = unpacked(out)
    everything = b"\0".join(after.values())
    before = unpacked(report)
    options, facts = (Message(memoryview(before[name])) for name in (OPTIONS, UI_DATA))
    launch = options.message(26)
    assert not any(bytes(facts.bytes_value(n)) in everything for n in (25,))
    pairs = [(bytes(m.bytes_value(1)), bytes(m.bytes_value(2))) for m in launch.messages(30)]
    assert pairs
    assert [k for k, v in pairs if b"%b=%b" % (k, v) in everything] == []
    assert [k for k, _ in pairs if k in after[OPTIONS] or k in after[AGENTS]] == []
    sections = [Message(memoryview(after[UI_DATA])), Message(memoryview(after[OPTIONS]))]
    assert sections[0].bytes_value(25) == b""
    hosts = {bytes(m.bytes_value(n)) for m, ns in zip(sections, ((5, 24, 40), (9,)), strict=True) for n in ns}
    assert len(hosts) == 1
    assert HOST.fullmatch(hosts.pop())


@pytest.mark.slow
@needs_captures
def test_every_mutation_gives_the_same_tables_or_an_error(tmp_path: Path) -> None:
    names = ("cpu_only", "nvtx_features", "osrt_libs")
    files = {n: (CAPTURES / f"{n}.nsys-rep").read_bytes() for n in names}
    reports = {n: take_apart(CAPTURES / f"{n}.nsys-rep") for n in names}
    ended = {"error": 0, "copy": 0}
    cases = CASES[: len(CASES) // 3]
    for case in cases:
        dice = random.Random(case)
        name, mutate = names[case % len(names)], MUTATIONS[case // len(names) % len(MUTATIONS)]
        path = written(tmp_path, mutate(reports[name], files[name], dice), "case.nsys-rep")
        began = time.process_time()
        ended[outcome(path, tmp_path / "out.nsys-rep")] += 1
        assert time.process_time() - began < 2, f"case {case}, {name}, {mutate.__name__}"
    assert min(ended.values()) > len(cases) // 10


def outcome(path: Path, out: Path) -> str:
    """Redact a mutated report; the copy reads as the report does, or there is none."""
    out.unlink(missing_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tk.redact(path, out)
        except TracekitError as e:
            told, left = str(e), sorted(p.name for p in out.parent.iterdir())
            return "error" if told.startswith(f"{path}: ") and left == ["case.nsys-rep"] else told
        assert tables(out) == tables(path)
    return "copy"


def tables(path: Path) -> dict[str, object] | None:
    try:
        with tk.load(path) as trace:
            return {name: number_pseudonyms(name, trace[name]) for name in trace.tables}
    except TracekitError:
        return None


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (PLANTED.pack()[:-1], "the report is unfinished or truncated: the end marker is missing"),
        (replace(PLANTED, header=message((2, b"\x0b"))).pack(), "a field has the unknown wire type 3\n"),
        (replace(PLANTED, sections={UI_DATA: UI, OPTIONS: b"\x0a\x7f"}).pack(), "a field at offset 0 extends beyond"),
        (
            replace(PLANTED, strings=[b"\x0a\x7f"], stream=message((3, 1))).pack(),
            "a field extends beyond the end of its message (offset 0 of 2)\n",
        ),
    ],
    ids=["end", "header", "options", "strings"],
)
def test_damage_is_an_error_and_leaves_no_file(data: bytes, said: str, tmp_path: Path) -> None:
    path = written(tmp_path, data)
    with pytest.raises(CorruptTraceError) as caught:
        tk.redact(path, tmp_path / "out.nsys-rep")
    assert str(caught.value).startswith(f"{path}: {said}")
    assert caught.value.hint
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_sections_that_overlap_are_refused(tmp_path: Path) -> None:
    whole = PLANTED.pack()
    contents = Message(memoryview(whole)[int.from_bytes(whole[-16:-8], "little") : -16]).messages(1)
    raw = next(m for m in contents if m.text(1) == RAW)
    at, size = raw.int_value(2) or 0, raw.int_value(3) or 0
    again = b"".join(message((1, message((1, f"again {i}"), (2, at), (3, size)))) for i in range(9))
    path = written(tmp_path, whole[:-16] + again + whole[-16:])
    with pytest.raises(CorruptTraceError, match=r"the sections of the report overlap\nHint: "):
        tk.redact(path, tmp_path / "out.nsys-rep")


def test_a_section_over_the_mark_of_the_file_is_refused(tmp_path: Path) -> None:
    whole = PLANTED.pack()
    path = written(tmp_path, whole[:-16] + message((1, message((1, "first"), (2, 0), (3, 5)))) + whole[-16:])
    with pytest.raises(CorruptTraceError, match=r"a section overlaps the magic bytes of the file\nHint: "):
        tk.redact(path, tmp_path / "out.nsys-rep")


GPU = "d98800b1-2c5c-2fd8-49ad-447f376dedaa"
RAW_GPU = uuid.UUID(GPU).bytes
CLOCK = bytes(range(1, 17))
IDS = Parts(
    blocks=[event(59, 102, (1, 59), (7, f"on GPU-{GPU} at 0000:3b:00.0")), event(59, 102, (1, 59), (7, "nothing"))],
    strings=[strings("zero", f"MIG-{GPU}/1/2")],
    header=message(
        (1, message((1, "Local"), (2, message(
            (1, message((1, 170), (2, "/acme/falcon/target-linux-x64"))),
            (1, message((1, 897), (2, message((1, message((2, "H200"), (3, "0000:3b:00.0"), (5, GPU))))))),
        )))),
        (2, message((77, GPU))),
    ),
    rest=[message((1, message((2, message((7, message((5, GPU))), (9, message((1, 0), (5, RAW_GPU))))))))],
    sections={
        UI_DATA: message((2, GPU), (6, "2025.3"), (23, "/acme/falcon/r.qdstrm")),
        CLOCKS: message(
            (1, message((1, message((1, CLOCK), (2, 7))))), (2, message((1, message((1, CLOCK), (2, CLOCK))))),
        ),
    },
)  # fmt: skip


def test_a_uuid_is_replaced_by_the_same_pseudonym_everywhere(tmp_path: Path) -> None:
    path = written(tmp_path, IDS.pack())
    pseudonyms = Pseudonyms(KEY)
    out = tmp_path / "out.nsys-rep"
    counts = tk.redact(path, out, key=KEY)
    gpu, bus = (
        pseudonyms.compute_uuid_pseudonym(GPU.encode()),
        pseudonyms.compute_pci_address_pseudonym(b"0000:3b:00.0"),
    )
    after = unpacked(out)
    assert Message(memoryview(after[UI_DATA])).bytes_value(2) == gpu
    ranges = [m.text(7) for e in Message(memoryview(after["events 0"])).messages(1) for m in e.messages(102)]
    assert ranges == [f"on GPU-{gpu.decode()} at {bus.decode()}"]
    assert Message(memoryview(after["strings 0"])).bytes_values(1)[1] == b"MIG-" + gpu + b"/1/2"
    assert Message(memoryview(after["header"])).message(2).bytes_value(77) == gpu
    assert b"".join(after.values()).count(gpu) == 6
    trailer = Message(memoryview(after["rest 0"])).message(1).message(2)
    assert (
        trailer.message(9).bytes_value(5)
        == pseudonyms.compute_binary_uuid_pseudonym(RAW_GPU)
        == uuid.UUID(gpu.decode()).bytes
    )
    clocks = Message(memoryview(after[CLOCKS]))
    assert {bytes(clocks.message(n).message(1).bytes_value(i)) for n, i in ((1, 1), (2, 1), (2, 2))} == {
        pseudonyms.compute_binary_uuid_pseudonym(CLOCK)
    }
    everything = b"".join(after.values())
    assert [s for s in (GPU.encode(), RAW_GPU, CLOCK, b"3b:00", b"falcon") if s in everything] == []
    assert (counts["unique id"], counts["PCI address"], counts["path"]) == (10, 2, 2)


def test_environments_and_secrets_in_ranges_are_overwritten(tmp_path: Path) -> None:
    texts = {
        "env HOME=/root, WANDB_KEY=k3y-0f-carol, USER=carol": "env xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "environ({'PATH': '/bin', 'LOGNAME': 'dave'})": "environ({xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "carol_run with k3y-0f-carol as Dave": "xxxxx_run with xxxxxxxxxxxx as xxxx",
        "%63arol at %2Fhome%2Ferin%2Fa": "xxxxxxx at %2Fhome%2Fxxxx%2Fa",
        "token hf_abcdefghijklmnopqrstuvwxyz": "token xxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "read /data/falcon/a.bin of 10.0.0.7": "read /data/xxxxxx/a.bin of xx.x.x.x",
        "decarolize": "decarolize",
    }
    block = b"".join(event(59, 102, (1, 59), (2, i), (7, t), (9, PID)) for i, t in enumerate(texts))
    out, counts = redacted(written(tmp_path, Parts([block], [strings("zero")]).pack()))
    after = Message(memoryview(unpacked(out)["events 0"]))
    assert [m.text(7) for e in after.messages(1) for m in e.messages(102)] == list(texts.values())
    assert {k: n for k, n in counts.items() if n} == {
        "environment": 2, "name in another text": 2, "secret": 1, "path": 1, "network address": 1,
    }  # fmt: skip


LIMITED = """
import resource, sys, tracekit as tk
tk.unredacted("fixtures/empty.nsys-rep")
used = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
resource.setrlimit(resource.RLIMIT_CPU, (used + 8, used + 8))
resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))
try:
    print(tk.redact(sys.argv[1], sys.argv[2])["name in another text"])
except tk.TracekitError as e:
    print(type(e).__name__, e)
"""


def nested(text: bytes, depth: int) -> bytes:
    """A message in a message in a message …, with a text in the midst."""
    for _ in range(depth):
        text = message((1, text))
    return text


def bombs() -> Iterator[tuple[str, Parts, str]]:
    """Reports that are small and would take long to look through, and what is said of them."""
    empty, mark = b"\x0a\x00" * (1 << 20), strings("/home/alice/a")
    many = message((3, 21 << 20), (9, "lz4"))
    yield (
        "strings",
        Parts(strings=[empty] * 21, stream=many),
        "declares 22020096 strings, but tracekit supports ",
    )
    few = message((3, 1 << 20), (9, "lz4"))
    yield (
        "more",
        Parts(strings=[b"\x0a\x00" * (3 << 20)], stream=few),
        "the repeated fields of 1 messages have more than 2097152 values in total, which tracekit does not support\n",
    )
    yield "events", Parts(blocks=[b"\x0a\x00" * (1 << 23)], stream=message((1, 1 << 23), (3, 0))), ""
    marked = [message((1, message((102, b"\x08\x00" * 300_000 + mark))))] * 40
    yield (
        "fields",
        Parts(blocks=marked, stream=message((1, 40), (3, 0))),
        "redacting the report takes more than",
    )
    processes = [message((1, message((113, b"\x08\x00" * 2_000_000))))]
    yield (
        "processes",
        Parts(blocks=processes * 8, stream=message((1, 16), (3, 0))),
        "redacting the report takes more than",
    )
    names = [strings("alice " * 1_000_000, "USER=alice\0PATH=/bin\0")] * 30
    yield (
        "names",
        Parts(strings=names, stream=message((3, 60))),
        "redacting the report takes more than",
    )
    tokens = [message((1, message((102, message((7, "token" * 1_000_000))))))] * 30
    yield "marks", Parts(blocks=tokens, stream=message((1, 30), (3, 0))), "redacting the report takes more than"
    yield "depth", Parts(blocks=[message((1, nested(mark * 20_000, 40)))] * 3, stream=message((1, 3), (3, 0))), ""
    for name, text in (
        ("letters", b"alice " + b"l" * 15_000_000),
        ("pairs", b"alice " + b"al" * 7_500_000),
        ("escapes", b"%41 " + b"%20" * 5_000_000),
        ("numbers", b"\0\1alice " + b"\1a\0b" * 3_000_000),
        ("variables", b"PATH=/x HOME=/y " + b"PATH=/x " * 1_800_000),
    ):
        long = Parts([message((1, message((102, message((7, text))))))] * 13, [strings("USER=alice\0PATH=/bin\0")])
        yield name, replace(long, stream=message((1, 13), (3, 1))), "redacting the report takes more than"
    nested_names = "".join(f"USER={'a' * n}\0" for n in range(2, 250)) + "PATH=/bin\0"
    run = [message((1, message((102, message((7, "a" * 300_000))))))] * 11
    named = Parts(run, [strings(nested_names)], stream=message((1, 11), (3, 1)))
    yield (
        "prefixes",
        named,
        "the capture has a chain of more than 128 private names that each begin with the previous one",
    )
    alike = "PATH=/bin\0" + "".join(f"V{n}=/opt/acme/{n:08}\0" for n in range(30_000))
    paths = [message((1, message((102, message((7, "/opt/acme/00000001 " * 80_000))))))] * 8
    yield "values", Parts(paths, [strings(alike)], stream=message((1, 8), (3, 1))), ""
    environment = strings("PATH=/bin\0USER=alice\0" + "A=zzzzzzzz\0" * 1_000_000)
    yield "environments", Parts(strings=[environment] * 13, stream=message((1, 0), (3, 13))), ""


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.skipif(sys.platform == "win32", reason="no limit of processor time")
@pytest.mark.parametrize(("parts", "said"), [b[1:] for b in bombs()], ids=[b[0] for b in bombs()])
def test_what_a_small_report_may_cost_is_bounded(parts: Parts, said: str, tmp_path: Path) -> None:
    path = written(tmp_path, parts.pack())
    assert path.stat().st_size < 1_500_000
    command = [sys.executable, "-c", LIMITED, path, tmp_path / "out.nsys-rep"]
    done = fork_server.run(command, cwd=CAPTURES.parent, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert said in done.stdout
    if said:
        assert done.stdout.startswith(f"CorruptTraceError {path}: ")
        assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_file_that_changes_meanwhile_gives_no_copy(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = redact._RedactedReport.write

    def changing(self: redact._RedactedReport, out: BinaryIO) -> None:
        original(self, out)
        with planted.open("ab") as f:
            f.write(b"more")

    monkeypatch.setattr(redact._RedactedReport, "write", changing)
    with pytest.raises(TracekitError, match=r"changed while it was open: it had .* bytes, but now .*\nHint: wait"):
        tk.redact(planted, planted.with_name("out.nsys-rep"))
    assert [p.name for p in planted.parent.iterdir()] == [planted.name]


def test_what_remains_is_counted(planted: Path) -> None:
    with untouched(planted):
        counts = tk.unredacted(planted)
    out, replaced = redacted(planted)
    assert counts == replaced
    assert not any(tk.unredacted(out).values())
    assert sorted(p.name for p in planted.parent.iterdir()) == sorted([planted.name, out.name])


def test_fields_between_entries_are_kept_and_overwritten(tmp_path: Path) -> None:
    """Fields that no release has, before and between events: a name in one of them is no safer than in an event."""
    block = (
        message((3, 7))
        + event(59, 102, (7, "in /home/alice/a"))
        + message((4, "of /home/bob/b"), (5, 9))
        + PLANTED.blocks[1]
    )
    out, _ = redacted(written(tmp_path, Parts([block], [strings("zero")], stream=message((1, 2), (3, 1))).pack()))
    assert unpacked(out)["events 0"] == block.replace(b"alice", b"xxxxx").replace(b"bob", b"xxx")
