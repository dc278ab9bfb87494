"""Reports redacted: what is private is gone from every section and block, and every other field is as it was."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tracekit as tk
from tests.readers.databases import untouched
from tests.readers.nsys_rep_files import (
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
from tests.readers.test_nsys_rep_fuzz import CASES, MUTATIONS
from tracekit.errors import CorruptTraceError, TracekitError
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.rewriting import parts
from tracekit.readers.common.protobuf.wire import Message
from tracekit.readers.nsys_rep.blocks import RawData
from tracekit.readers.nsys_rep.container import FACTS, OFFSETS, RAW, Container
from tracekit.readers.nsys_rep.entries import count
from tracekit.registry import Source

OWN = sorted(CAPTURES.glob("*.nsys-rep"))
needs_captures = pytest.mark.skipif(not OWN, reason="no captures beside the checkout")
OPTIONS, AGENTS = "Analysis Options Data", "Agent activity list"
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
    sections={FACTS: UI, OPTIONS: ASKED, AGENTS: ACTIVITY, "Telemetry": b"", "Other": message((1, "by alice"), (2, 7))},
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
    raw = RawData(opened, count)
    found = {name: bytes(data) for name, data in opened.sections.items() if name not in (RAW, OFFSETS)}
    apart = take_apart(path)
    found |= {"header": apart.header, "stream": apart.stream or b""}
    found |= {f"events {i}": bytes(raw.unpack(b)) for i, b in enumerate(raw.blocks)}
    found |= {f"strings {i}": b for i, b in enumerate(apart.strings)}
    return found | {f"rest {i}": b for i, b in enumerate(apart.rest)}


def differing(before: bytes, after: bytes, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Paths of the fields that differ, as deep as both are messages."""
    try:
        mine, theirs = list(parts(before)), list(parts(after))
        assert mine
        assert [p.number for p in mine] == [p.number for p in theirs]
    except (Damage, AssertionError):
        yield path
        return
    for a, b in zip(mine, theirs, strict=True):
        if before[a.start : a.end] != after[b.start : b.end]:
            yield from differing(before[a.start : a.end], after[b.start : b.end], (*path, a.number))


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
        "name in another text": 7,
    }


def test_every_other_field_is_as_it_was(planted: Path) -> None:
    before, after = unpacked(planted), unpacked(redacted(planted)[0])
    assert list(before) == list(after)
    launch = {(10,), (11,), (12,), (13,), (30, 1), (30, 2)}
    options = {(9,)} | {(26, *p) for p in launch}
    found = {name: set(differing(before[name], after[name])) for name in before if before[name] != after[name]}
    assert found == {
        FACTS: {(5,), (24,), (25,), (40,)},
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
    assert Message(memoryview(after["strings 0"])).parts(1) == [b"zero", b"of xxxxx", b"", b"", b""]
    assert Message(memoryview(after["strings 1"])).parts(1) == [b"more", b""]
    events = Message(memoryview(after["events 0"])).messages(1)
    texts = {n: [bytes(p) for e in events for m in e.messages(113) for p in m.parts(n)] for n in (5, 6, 7, 8, 9)}
    assert texts == {5: [b"", b"worker", b"python3"], 6: [b"solver", b"python3"], 7: [b""], 8: [b""], 9: [b"", b""]}
    ranges = [m.text(7) for e in events for m in e.messages(102)]
    assert ranges == ["step of xxxxx at /home/xxx/a.py", "malice"]
    assert [m.text(4) for e in events for m in e.messages(110)] == ["xxxx and xxxxxxxxxxxxxxxxxxxxx"]
    header = Message(memoryview(after["header"])).message(1).message(2).messages(1)
    assert [m.part(2) for m in header][:4] == [b"32", b"", b"", b"#1 SMP xxxxx@xxxxx"]
    assert header[4].message(2).message(1).number(6) == 0


def test_only_what_changes_is_packed_anew(planted: Path) -> None:
    out, _ = redacted(planted)
    unchanged = packed(PLANTED.blocks[1])
    assert unchanged in planted.read_bytes()
    assert unchanged in out.read_bytes()


def test_without_anything_private_the_copy_is_the_same_file(tmp_path: Path) -> None:
    facts = {FACTS: message((6, "2025.3"))}
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
    ends = [after.places[n] + len(after.sections[n]) for n in names]
    assert [after.places[n] for n in names[1:]] == ends[:-1]
    assert after.places[names[0]] == before.places[names[0]] == 31


@needs_captures
@pytest.mark.parametrize("report", OWN, ids=lambda p: p.stem)
def test_sections_of_real_reports_keep_their_order_without_gaps(report: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.nsys-rep"
    tk.redact(report, out)
    before, after = (Container(Source(p)) for p in (report, out))
    for opened in (before, after):
        ends = [opened.places[n] + len(data) for n, data in opened.sections.items()]
        assert list(opened.places.values())[1:] == ends[:-1]
    assert list(before.sections) == list(after.sections)


def test_reports_that_do_not_tell_where_strings_begin(tmp_path: Path) -> None:
    path = written(tmp_path, replace(PLANTED, offsets=False).pack())
    out, counts = redacted(path)
    told = redacted(written(tmp_path, PLANTED.pack(), "told.nsys-rep"), "told_redacted.nsys-rep")
    assert (unpacked(out), counts) == (unpacked(told[0]), told[1])


def test_schemas_of_payloads_after_the_strings_are_moved_and_searched(tmp_path: Path) -> None:
    schema = message((3, message((1, PID), (2, message((1, 5), (5, "payload of alice"))))))
    raw, strings_at = PLANTED.raw(map(packed, PLANTED.blocks))
    offsets = message((1, "lz4"), (2, strings_at - len(RAW_MAGIC)), (3, len(raw) - len(RAW_MAGIC)))
    path = written(tmp_path, container({OFFSETS: offsets, RAW: raw + packed(schema), **PLANTED.sections}))
    out, _ = redacted(path)
    opened = Container(Source(out))
    data = RawData(opened, count)
    places = Message(opened.section(OFFSETS))
    assert list(opened.sections) == [RAW, OFFSETS, *PLANTED.sections]
    assert places.text(1) == "lz4"
    block = data.block((places.number(3) or 0) + len(RAW_MAGIC))
    assert bytes(data.unpack(block)) == schema.replace(b"alice", b"xxxxx")
    assert block.at + block.packed == len(data.data)
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
    options = {(9,), (26, 10), (26, 11), (26, 12), (26, 30, 1), (26, 30, 2)}
    events = {p for name, paths in found.items() if name.startswith("events") for p in paths}
    assert {n for n in found if not n.startswith(("events", "strings"))} == {FACTS, OPTIONS, AGENTS, "header"}
    assert found[FACTS] == {(5,), (24,), (25,), (40,)}
    assert found[OPTIONS] <= options
    assert found["header"] <= {(1, 2, 1, 2)} | {(2, *p) for p in options}
    assert events <= {(1, 113, n) for n in (5, 7, 8, 9)}
    assert {p for name, paths in found.items() if name.startswith("strings") for p in paths} <= {(1,)}


@needs_captures
@pytest.mark.parametrize("report", OWN, ids=lambda p: p.stem)
def test_of_real_reports_nothing_private_is_left(report: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.nsys-rep"
    tk.redact(report, out)
    after = unpacked(out)
    everything = b"\0".join(after.values())
    before = unpacked(report)
    options, facts = (Message(memoryview(before[name])) for name in (OPTIONS, FACTS))
    launch = options.message(26)
    assert not any(bytes(facts.part(n)) in everything for n in (25,))
    pairs = [(bytes(m.part(1)), bytes(m.part(2))) for m in launch.messages(30)]
    assert pairs
    assert [k for k, v in pairs if b"%b=%b" % (k, v) in everything] == []
    assert [k for k, _ in pairs if k in after[OPTIONS] or k in after[AGENTS]] == []
    sections = [Message(memoryview(after[FACTS])), Message(memoryview(after[OPTIONS]))]
    assert [m.part(n) for m, ns in zip(sections, ((5, 24, 25, 40), (9,)), strict=True) for n in ns] == [b""] * 5


@needs_captures
def test_every_mutation_gives_the_same_tables_or_an_error(tmp_path: Path) -> None:
    names = ("cpu_only", "nvtx_features", "osrt_libs")
    files = {n: (CAPTURES / f"{n}.nsys-rep").read_bytes() for n in names}
    reports = {n: take_apart(CAPTURES / f"{n}.nsys-rep") for n in names}
    ended = {"error": 0, "copy": 0}
    for case in range(CASES // 3):
        dice = random.Random(case)
        name, mutate = names[case % len(names)], MUTATIONS[case // len(names) % len(MUTATIONS)]
        path = written(tmp_path, mutate(reports[name], files[name], dice), "case.nsys-rep")
        began = time.process_time()
        ended[outcome(path, tmp_path / "out.nsys-rep")] += 1
        assert time.process_time() - began < 2, f"case {case}, {name}, {mutate.__name__}"
    assert min(ended.values()) > CASES // 30


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
            return {name: trace[name] for name in trace.tables}
    except TracekitError:
        return None


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (PLANTED.pack()[:-1], "unfinished or cut short: its"),
        (replace(PLANTED, header=message((2, b"\x0b"))).pack(), "no field is of kind 3\n"),
        (replace(PLANTED, sections={FACTS: UI, OPTIONS: b"\x0a\x7f"}).pack(), "a field at byte 0 reaches beyond"),
        (replace(PLANTED, strings=[b"\x0a\x7f"], stream=message((3, 1))).pack(), "a field at byte 0 reaches beyond"),
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
    at, size = raw.number(2) or 0, raw.number(3) or 0
    again = b"".join(message((1, message((1, f"again {i}"), (2, at), (3, size)))) for i in range(9))
    path = written(tmp_path, whole[:-16] + again + whole[-16:])
    with pytest.raises(CorruptTraceError, match="its sections overlap\nHint: "):
        tk.redact(path, tmp_path / "out.nsys-rep")


def test_a_section_over_the_mark_of_the_file_is_refused(tmp_path: Path) -> None:
    whole = PLANTED.pack()
    path = written(tmp_path, whole[:-16] + message((1, message((1, "first"), (2, 0), (3, 5)))) + whole[-16:])
    with pytest.raises(CorruptTraceError, match="a section lies where the file begins\nHint: "):
        tk.redact(path, tmp_path / "out.nsys-rep")
