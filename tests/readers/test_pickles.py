"""Pickles are read without running them: values equal those of ``pickle``, and everything else is refused."""

from __future__ import annotations

import io
import itertools
import pickle
import pickletools
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracekit.readers.common import pickles
from tracekit.readers.common.budget import Budget
from tracekit.readers.common.damage import Damage
from tracekit.system.files import InputFile

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 80), 1 << 80) | st.sampled_from([1 << 58, -(1 << 58), 1 << 63, -(1 << 63), (1 << 64) - 1]),
    st.floats(allow_nan=False),
    TEXT,
)


def nested(leaves: st.SearchStrategy[Any], keys: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda each: st.lists(each) | st.dictionaries(keys, each) | st.tuples(each, each) | st.lists(each).map(tuple),
        max_leaves=20,
    )


def small(value: Any) -> bool:
    """Whether no integer is longer than 64 bits, which protocols 0 and 1 write as lines of digits."""
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 64
    if isinstance(value, dict):
        return all(map(small, (*value, *value.values())))
    return not isinstance(value, list | tuple) or all(map(small, value))


def read(data: bytes, tmp_path: Path) -> pickles.Values:
    path = tmp_path / "values.pickle"
    path.write_bytes(data)
    with InputFile(path) as file:
        return pickles.read_pickle(file, Budget(file.size))


def build(data: bytes, tmp_path: Path) -> Any:
    values = read(data, tmp_path)
    return values.build(values.root)


@given(nested(PLAIN, TEXT | st.integers()))
def test_values_are_those_of_pickle(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        if protocol < 2 and not small(value):
            continue
        data = pickle.dumps(value, protocol)
        again = build(data, tmp_path_factory.getbasetemp())
        assert again == value
        assert repr(again) == repr(value)  # also the types, and the order of keys


@given(nested(PLAIN | st.binary(max_size=300), TEXT))
def test_sets_and_bytes_of_new_protocols(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    whole = [value, {1, "a"}, frozenset([2]), bytearray(b"x"), b"y" * 300]
    again = build(pickle.dumps(whole, 5), tmp_path_factory.getbasetemp())
    assert again == [value, {1, "a"}, frozenset([2]), b"x", b"y" * 300]


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"(lp0\nI01\naI00\naL12L\naI-7\naF1.5\na.", [True, False, 12, -7, 1.5]),
        (b"(dp0\nS'a b'\nV\\u00e9\\n\ns.", {"a b": "\xe9\\n"}),
        (b"U\x03a\xe9b.", "a\xe9b"),
        (b"T\x01\x00\x00\x00x.", "x"),
        (b"K\x01K\x022\x860.", 1),
        (b"(K\x01K\x021K\x03.", 3),
        (b"(K\x010K\x05.", 5),
        (b"](0K\x01a.", [1]),
        (b"N.", None),
        (b"]q\x00h\x00.", []),
        (b"]r\x00\x00\x00\x00(j\x00\x00\x00\x000K\x021.", []),
        (b"\x80\x03C\x02ab.", b"ab"),
        (b"(K\x01K\x02t.", (1, 2)),
        (b"X\x02\x00\x00\x00\xff\xfe.", "\ufffd\ufffd"),
    ],
)
def test_old_and_rare_opcodes(data: bytes, value: Any, tmp_path: Path) -> None:
    if value != "\ufffd\ufffd":
        assert pickle.loads(data, encoding="latin-1") == value
    assert build(data, tmp_path) == value


class Reduced:
    def __reduce__(self) -> tuple[object, ...]:
        return print, ("called",)


class Old:
    pass


@pytest.mark.parametrize(
    ("data", "called"),
    [
        (pickle.dumps(Reduced(), 2), "print"),
        (pickle.dumps([1, {"a": Reduced()}], 4), "builtins.print"),
        (b"cos\nsystem\n(S'true'\ntR.", "os.system"),
        (b"(S'true'\nios\nsystem\n.", "os.system"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "os.system"),
        (b"\x80\x04K\x01K\x02\x93.", "a function"),
        (b"\x80\x02\x82\x01.", "a function of the extension registry"),
        (b"P12\n.", "the function persistent_load"),
        (b"K\x01Q.", "the function persistent_load"),
        (b"NN\x81.", "the method __new__ of a class"),
        (b"N(o.", "a class"),
        (b"NNb.", "the method __setstate__"),
        (b"NNR.", "a function"),
        (b"\x97.", "the provider of a buffer outside of the pickle"),
        (b"c" + b"\x1b[2J" * 200 + b"\nx\n.", "?[2J"),
    ],
)
def test_nothing_is_called(data: bytes, called: str, tmp_path: Path) -> None:
    with pytest.raises(Damage, match="the pickle is not plain data") as caught:
        read(data, tmp_path)
    assert f"it would call {called}" in str(caught.value).replace("_builtin_", "builtins") or called == "print"
    assert "nothing was called" in str(caught.value)
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "truncated"),
        (b"]", "truncated: it has no end"),
        (b"\x80\x04X\x05\x00\x00\x00abc", "truncated: it ends within"),
        (b"X\xff\xff\xff\x7fabc.", "a length exceeds"),
        (b"\x8d" + b"\xff" * 8 + b"abc.", "a length exceeds"),
        (b"\x8b\xff\xff\xff\xff.", "a length exceeds"),
        (b"\x80\x04\x95" + b"\xff" * 8 + b"].", "a frame is longer than the file"),
        (b"\x80\x06].", "protocol"),
        (b"\xffabc", "no opcode"),
        (b".", "needs more values"),
        (b"0.", "needs more values"),
        (b"K\x01e.", "needs more values"),
        (b"K\x01(K\x01e.", "another type"),
        (b"(e.", "needs more values"),
        (b"a.", "needs more values"),
        (b"K\x01s.", "needs more values"),
        (b"}(K\x01u.", "another type"),
        (b"}(]K\x01u.", "another type"),
        (b"(K\x01d.", "another type"),
        (b"\x85.", "needs more values"),
        (b"t.", "needs more values"),
        (b"1.", "needs more values"),
        (b"2.", "needs more values"),
        (b"((K\x0100e.", "needs more values"),
        (b"q\x00.", "needs more values"),
        (b"h\x00.", "was not stored before"),
        (b"]r\xff\xff\xff\xff.", "too large for a file"),
        (b"Ix\n.", "a number or a string"),
        (b"L" + b"9" * 30 + b"L\n.", "a number or a string"),
        (b"I-99999999999999999999\n.", "a number or a string"),
        (b"]p-1\n.", "a number or a string"),
        (b"Sx\n.", "a number or a string"),
        (b"S'a\\n'\n.", "a number or a string"),
        (b"I" + b"1" * (1 << 17), "a length exceeds"),
        (b"(" * (1 << 17), "exceed the memory"),
    ],
)
def test_damage_is_described(data: bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(Damage, match=said):
        read(data, tmp_path)


def test_truncated_and_changed_pickles_are_damaged_or_read(tmp_path: Path) -> None:
    data = pickle.dumps({"a": [1, 2.5, "text", {"b": (None, True, 1 << 70)}]}, 4)
    for stop in range(len(data)):
        with pytest.raises(Damage):
            read(data[:stop], tmp_path)
    for at in range(len(data)):
        for value in (0, 0x28, 0x2E, 0x65, 0x75, 0x94, 0xFF):
            try:
                build(data[:at] + bytes([value]) + data[at + 1 :], tmp_path)
            except Damage:
                continue


def test_values_that_repeat_or_contain_themselves(tmp_path: Path) -> None:
    bomb: list[Any] = ["x"]
    for _ in range(60):
        bomb = [bomb, bomb]  # 2^60 values
    again = build(pickle.dumps(bomb), tmp_path)
    assert again[0] is again[1]
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(Damage, match="nested more than 100 levels"):
        build(pickle.dumps(cycle), tmp_path)
    with pytest.raises(Damage, match="nested more than 100 levels"):
        build(b"]" * 200 + b"a" * 199 + b".", tmp_path)
    with pytest.raises(Damage, match="a key of the pickle"):
        build(b"\x80\x04(K\x01]\x91.", tmp_path)


def test_small_files_take_little_memory(tmp_path: Path) -> None:
    events = b"\x80\x04](" + b"K\x01" * 1000 + b"e" + b"\x94" + b"0](" + b"h\x00" * 200_000 + b"e."
    values = read(events, tmp_path)
    with pytest.raises(Damage, match="would take"):
        values.flatten(values.get_items(values.root), "lists")


def test_values_that_are_shared_are_built_once(tmp_path: Path) -> None:
    text = "x" * 1000
    value = [text, text, {("k",): 1}, {text: 2}]
    again = build(pickle.dumps(value), tmp_path)
    assert again == value
    assert again[0] is again[1]
    key = b"N\x85" + b"q\x00h\x00\x86" * 60  # a pair of equal pairs: hashing it would take years
    for data in (b"}" + key + b"Ns.", b"(" + key + b"\x91.", b"\x8f(" + key + b"\x90."):
        with pytest.raises(Damage, match="a key of the pickle is nested"):
            build(b"\x80\x04" + data, tmp_path)


def test_unknown_members_are_counted_together_if_there_are_many(tmp_path: Path) -> None:
    rows = [{f"{n}" * 300: 1 for n in range(1500)}, {"a": 1}]
    values = read(pickle.dumps(rows), tmp_path)
    unknown: dict[str, int] = {}
    values.columns(values.get_items(values.root), ("a",), "rows", unknown)
    assert (len(unknown), max(map(len, unknown)), sum(unknown.values())) == (1001, 200, 1500)
    data = b"}" + b"".join(b"U\x01aK%cs" % n for n in range(9)) + b"."
    assert read(data, tmp_path).get_members(read(data, tmp_path).root).keys() == {"a"}


def test_columns(tmp_path: Path) -> None:
    rows = [{"a": 1, "b": "x"}, {"b": None}, {"a": 1 << 63, "c": 2, 5: 6}, {}, {"a": True, "b": "y"}, {"a": -(1 << 62)}]
    for protocol in range(6):
        values = read(pickle.dumps(rows, protocol), tmp_path)
        unknown: dict[str, int] = {}
        cells = values.columns(values.get_items(values.root), ("a", "b"), "rows", unknown)
        numbers, valid = values.integers(cells["a"], "a")
        assert numbers.tolist() == [1, 0, -(1 << 63), 0, 1, -(1 << 62)]
        assert valid.tolist() == [True, False, True, False, True, True]
        texts = values.encode(values.find_strings(cells["b"], "b"), ("y",))
        assert texts.to_pylist() == ["x", None, None, None, None, None]
        assert texts.dictionary.to_pylist() == ["x"]
        assert unknown == {"c": 1, "another key": 1}
        with pytest.raises(Damage, match="the value b of the pickle is not an integer"):
            values.integers(cells["b"], "b")
        with pytest.raises(Damage, match="the value a of the pickle is not a string"):
            values.find_strings(cells["a"], "a")
        with pytest.raises(Damage, match="rows were expected"):
            values.columns(cells["a"], ("a",), "rows")
    assert values.get_members(int(values.get_items(values.root)[0])).keys() == {"a", "b"}
    with pytest.raises(Damage, match="a dictionary was expected"):
        values.get_members(values.root)


def test_members_that_change_the_parts_of_a_dictionary(tmp_path: Path) -> None:
    parts = b"".join(b"V%d\nI%d\ns" % (n, n) for n in range(70))
    values = read(b"(l(d" + parts + b"a.", tmp_path)
    with pytest.raises(Damage, match="more than 64 parts"):
        values.columns(values.get_items(values.root), ("1",), "rows")
    shapes = pickle.dumps([{f"k{n}": 1} for n in range(1100)])
    values = read(shapes, tmp_path)
    with pytest.raises(Damage, match="more than 1,000 combinations of keys"):
        values.columns(values.get_items(values.root), ("k1",), "rows")


def test_lists(tmp_path: Path) -> None:
    long = list(range(2500))
    lists = [[1, 2], [], None, long, (3,), [1, 2], long]
    for protocol in (0, 2, 4):
        values = read(pickle.dumps(lists, protocol), tmp_path)
        cells = values.get_items(values.root)
        offsets, items = values.flatten(cells, "lists")
        numbers, _ = values.integers(items, "item")
        expected = [list(each or []) for each in lists]
        assert [numbers[a:b].tolist() for a, b in itertools.pairwise(offsets)] == expected
        codes, distinct = values.encode_lists([cells[:4], cells[5:]])
        if protocol > 0:
            assert [code.tolist() for code in codes] == [[0, 1, 1, 2], [0, 2]]
            assert len(distinct) == 3
    with pytest.raises(Damage, match="lists were expected"):
        values.encode_lists([items])
    with pytest.raises(Damage, match="numbers were expected"):
        values.flatten(items, "numbers")


def test_strings_are_replaced(tmp_path: Path) -> None:
    value = {"user": "alice", "all": ["alice", "bob" * 100, 1, ("x",)], "y" * 70_000: "z" * (1 << 20)}
    for protocol in range(1, 6):
        path = tmp_path / f"{protocol}.pickle"
        path.write_bytes(pickle.dumps(value, protocol))
        with InputFile(path) as file:
            same = b"".join(pickles.edit_strings(file, Budget(file.size), lambda text: text))
            other = b"".join(pickles.edit_strings(file, Budget(file.size), lambda text: text.replace(b"alice", b"")))
        assert pickle.loads(same) == value
        assert pickle.loads(other) == {**value, "user": "", "all": ["", *value["all"][1:]]}
        pickletools.dis(other, io.StringIO())
    for data in (pickle.dumps(value, 0), b"Falice\n."):
        path.write_bytes(data)
        with InputFile(path) as file, pytest.raises(Damage, match="the form of protocol 0"):
            list(pickles.edit_strings(file, Budget(file.size), lambda text: text))


def test_a_long_pickle_is_read_in_windows(tmp_path: Path) -> None:
    value = [{"n": n, "text": f"text {n % 1000}", "real": n / 7} for n in range(150_000)]
    data = pickle.dumps(value, 4)
    assert len(data) > pickles._WINDOW_BYTES
    values = read(data + b"more", tmp_path)
    assert values.end == len(data)
    cells = values.columns(values.get_items(values.root), ("n", "real"), "rows")
    assert (values.integers(cells["n"], "n")[0] == np.arange(150_000)).all()
    assert values.build(int(cells["real"][7001])) == 7001 / 7
    long = b"\x8d" + struct.pack("<Q", 1 << 23) + b"x" * (1 << 23) + b"."
    with pytest.raises(Damage, match="maximum size of a string"):
        read(long, tmp_path)
