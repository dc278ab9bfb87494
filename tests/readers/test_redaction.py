"""Names of people and machines: which are learned, where they are overwritten, and that nothing else is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.readers.nsys_rep_files import message
from tracekit.errors import CorruptTraceError
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.rewriting import edited, parts, within
from tracekit.readers.common.redaction import (
    COMMAND,
    ENVIRONMENT,
    HOST,
    KINDS,
    MENTION,
    MOST_NAMES,
    USER,
    Names,
    Redaction,
    is_environment,
    is_text,
    without_folder,
)

words = st.text("ab_-1", min_size=1, max_size=4).map(str.encode)
texts = st.lists(words | st.sampled_from([b" ", b"/", b".", b"\xc3\xa9", b":"]), max_size=12).map(b"".join)


def learned(kind: str, value: bytes) -> set[bytes]:
    """The names that a value gives away, in small letters."""
    redaction = Redaction(Path("made"))
    redaction.learn(kind, value)
    return {n for n in redaction.names().marks if n == n.lower() and b"/" not in n and b"\\" not in n}


@pytest.mark.parametrize(
    ("kind", "value", "names"),
    [
        (HOST, b"gpu17", {b"gpu17"}),
        (HOST, b"gpu17.cluster.example", {b"gpu17.cluster.example", b"gpu17"}),
        (HOST, b"localhost.localdomain", set()),
        (HOST, b"10.0.0.7", {b"10.0.0.7"}),
        (HOST, b"x", set()),
        (USER, b"alice", {b"alice"}),
        (USER, b"root", set()),
        (USER, b"1042", set()),
        (USER, b"20231042", {b"20231042"}),
        (USER, b"CORP\\alice", {b"corp", b"alice"}),
        (USER, b"alice@example.org", {b"alice", b"example.org"}),
        (USER, b"Alice Doe", {b"alice doe"}),
        (ENVIRONMENT, b"PATH=/bin\0USER=alice\0HOSTNAME=gpu17\0HOME=/data/bob\0", {b"alice", b"gpu17", b"bob"}),
        (ENVIRONMENT, b"HOME=/workspace;LOGNAME=alice;NAME=other", {b"alice"}),
        (ENVIRONMENT, b'USER="alice"', {b"alice"}),
        (ENVIRONMENT, b"USERPROFILE=C:\\Users\\bob", {b"bob"}),
        (ENVIRONMENT, b"MY_USER=alice", set()),
        (COMMAND, b"/home/alice/run.sh --at /data", {b"alice"}),
        (COMMAND, b"python3", set()),
    ],
)  # fmt: skip
def test_names_are_learned_from_what_tells_them(kind: str, value: bytes, names: set[bytes]) -> None:
    assert learned(kind, value) == names


def test_names_are_looked_for_as_written_in_small_and_in_capital_letters() -> None:
    redaction = Redaction(Path("made"))
    assert redaction.take(USER, b"Alice Doe") == b""
    assert redaction.counts[USER] == 1
    names = redaction.names()
    assert (
        names.overwritten(b"Alice Doe, alice doe, ALICE DOE, aLICE doe")
        == b"xxxxxxxxx, xxxxxxxxx, xxxxxxxxx, aLICE doe"
    )


def test_more_names_than_a_capture_can_tell_are_refused() -> None:
    environment = b"\0".join(b"USER=name%d" % i for i in range(MOST_NAMES))
    with pytest.raises(CorruptTraceError, match=f"^made: tells more than {MOST_NAMES} names of hosts and users$"):
        Redaction(Path("made")).learn(ENVIRONMENT, environment)


@given(st.sets(st.text("ab_1", min_size=1, max_size=3).map(str.encode), min_size=1), texts)
def test_whole_words_are_overwritten_and_nothing_else(names: set[bytes], text: bytes) -> None:
    made = Names(names).overwritten(text)
    expected = [b"x" * len(w) if w in names else w for w in re.split(rb"(\w+)", text)]
    assert made == b"".join(expected)


@given(st.sets(words), st.binary(max_size=60) | texts)
def test_overwriting_keeps_the_length_and_needs_no_second_time(names: set[bytes], data: bytes) -> None:
    known = Names(names)
    for overwrite in (known.overwritten, known.overwritten_in_binary):
        made = overwrite(data)
        assert len(made) == len(data)
        assert overwrite(made) == made
        assert made == data or known.marked(data)


@given(st.sets(words), texts)
def test_marks_stand_where_they_are_said_to(names: set[bytes], text: bytes) -> None:
    known = Names(names)
    places = list(known.places(text))
    assert bool(places) == known.marked(text)
    assert all(text[a:b] in known.marks for a, b in places)
    brute = {(i, i + len(m)) for m in known.marks for i in range(len(text)) if text.startswith(m, i)}
    assert set(places) == brute


@pytest.mark.parametrize(
    ("text", "made"),
    [
        (b"/home/alice/train.py", b"/home/xxxxx/train.py"),
        (b"in /home/alice and /home/bob.", b"in /home/xxxxx and /home/xxxx"),
        (b"/Users/Alice/a:/users/bob", b"/Users/xxxxx/a:/users/xxx"),
        (b"C:\\Users\\Alice Doe\\a.py", b"C:\\Users\\xxxxxxxxx\\a.py"),
        (b"C:\\\\Users\\\\Alice\\\\a", b"C:\\\\Users\\\\xxxxx\\\\a"),
        (b"/home/ubuntu/a /home/conda/b", b"/home/ubuntu/a /home/conda/b"),
        (b"('/home/alice', 1)", b"('/home/xxxxx', 1)"),
        (b"/home//alice /home/ parsers/alice", b"/home//xxxxx /home/ parsers/alice"),
        (b"/home/\xc3\xa9t\xc3\xa9/a", b"/home/xxxxx/a"),
    ],
)  # fmt: skip
def test_home_folders_are_overwritten(text: bytes, made: bytes) -> None:
    assert Names(()).overwritten(text) == made


def test_among_numbers_only_what_surely_is_a_name_is_overwritten() -> None:
    names = Names([b"bob", b"alice"])
    data = b"\x01\x00alice\x02bob\x00/home/carol\x00/home/dave\x01"
    assert not is_text(data)
    assert names.overwritten_in_binary(data) == b"\x01\x00xxxxx\x02bob\x00/home/xxxxx\x00/home/dave\x01"


def test_texts_are_counted_when_something_is_overwritten() -> None:
    redaction = Redaction(Path("made"))
    redaction.learn(USER, b"alice")
    names = redaction.names()
    assert redaction.overwrite(names, b"malice") == b"malice"
    assert redaction.overwrite(names, b"by alice") == b"by xxxxx"
    assert redaction.overwrite(names, b"by xxxxx") == b"by xxxxx"
    assert redaction.counts == dict.fromkeys(KINDS, 0) | {MENTION: 1}


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        (b"A=1\0B=2\0", True),
        (b"BASH_FUNC_ml%%=() {  eval\n}\0PATH=/bin", True),
        (b"PATH=/usr/bin:/bin", True),
        (b"LC_NUMERIC=en_US.UTF-8", True),
        (b"PATH=/bin\nHOME=/root\nX=1\n", True),
        (b"some text\nthat tells\nPATH=/bin\nand more", False),
        (b"step=1\nloss=2", False),
        (b"BATCH=4", False),
        (b"wide\0text\0", False),
        (b"void f<(int)4>::operator=(T &)", False),
        (b"", False),
    ],
)  # fmt: skip
def test_environments_are_told_by_their_shape(text: bytes, is_one: bool) -> None:
    assert is_environment(text) is is_one


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (b"/usr/bin/python3", b"python3"),
        (b"./a.out", b"a.out"),
        (b"C:\\Program Files\\app.exe", b"app.exe"),
        (b"\\\\server\\share\\app.exe", b"app.exe"),
        (b"kworker/0:1", b"kworker/0:1"),
        (b"[kthreadd]", b"[kthreadd]"),
    ],
)
def test_programs_keep_their_name(path: bytes, name: bytes) -> None:
    assert without_folder(path) == name


values = st.integers(0, (1 << 64) - 1) | st.floats() | st.binary(max_size=20)
messages = st.lists(st.tuples(st.integers(1, 200), values), max_size=8).map(lambda fields: message(*fields))


@given(messages)
def test_parts_cover_a_message(data: bytes) -> None:
    found = list(parts(data))
    assert b"".join(data[p.begin : p.end] for p in found) == data
    assert edited(data, lambda _, value: value) is data


@given(st.lists(st.tuples(st.integers(1, 4), values), max_size=8), st.binary(max_size=200))
def test_only_the_named_fields_change(fields: list[tuple[int, int | float | bytes]], value: bytes) -> None:
    chosen = {2: lambda _: value}
    expected = message(*((n, value if n == 2 and isinstance(v, bytes) else v) for n, v in fields))
    assert within(chosen)(message(*fields)) == expected
    outer = message((1, message(*fields)), (7, 7))
    assert within({1: within(chosen)})(outer) == message((1, expected), (7, 7))


@given(st.binary(max_size=30))
def test_what_is_no_message_is_said_to_be_damaged(data: bytes) -> None:
    try:
        found = list(parts(data))
    except Damage:
        return
    assert b"".join(data[p.begin : p.end] for p in found) == data


@pytest.mark.parametrize("data", [b"\x0b", b"\x0a", b"\x0a\x05abc", b"\x09abc", b"\x08" + b"\xff" * 11, b"\x08\x80"])
def test_damage_is_found(data: bytes) -> None:
    with pytest.raises(Damage):
        list(parts(data))
