"""Redaction of PyTorch traces: private members and strings change, and every other byte of the JSON stays."""

from __future__ import annotations

import gzip
import json
import re
import warnings
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import kineto as files
from tests.builders.nsys_sqlite import untouched
from tests.conftest import FIXTURES
from tracekit.errors import CorruptTraceError, TracekitError, TracekitWarning
from tracekit.readers.common.json import stream
from tracekit.readers.redaction import json_text
from tracekit.readers.redaction import kineto as redact

PRIVATE = ("zaphodb", "deepthought42", "falcon", "hunter2 x", "s3cr3tvalue", "trillian", "-train-flag", "2001:db8::7")
ENVIRONMENT = {"PATH": "/bin", "HOME": "/home/zaphodb", "JOB_TOKEN": "s3cr3tvalue", "MODEL": "trillian-3b-secret"}
FACTS: dict[str, Any] = {
    "host_name": "deepthought42.example.org",
    "username": "zaphodb",
    "tw_user": "zaphodb",
    "trace_id": "094DFF9CD7781F8ADDEAFBA6A8855CA7",
    "metadata": {"env": ENVIRONMENT, "cwd": "/data/falcon/run", "argv": ["train.py", "--fast-train-flag"], "seed": 7},
    "extra": json.dumps({"inner": json.dumps({"password": "hunter2 x"}), "env": ENVIRONMENT}),
    "variables": {"any": ENVIRONMENT, "list": ["PATH=/bin", "HOME=/root", "X=trillian-3b-secret"]},
    "config": {"db_password": "hunter2 x", "args_list": ["--password", "hunter2 x"], "gpu": {"uuid": "ab" * 16}},
    "cluster": {"node_list": ["deepthought42", "deepthought43"], "rank": 0, "peer": "2001:db8::7"},
    "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8, "master_addr": "deepthought42"},
    "traceName": "/data/falcon/trace.json",
    "record_shapes": 1,
}


def event(name: str, **args: Any) -> dict[str, Any]:
    return {**json.loads(files.op(name)), "args": args}


EVENTS: list[dict[str, Any]] = [
    event("aten::mm"),
    event("/home/zaphodb/falcon/train.py(12): forward"),
    event('zaphodb\'s \\ loop "quoted" on deepthought42'),
    event("step by 张zaphodb伟", **{"Call stack": "/data/falcon/a.py(3): f;torch/nn/modules/module.py(1): g"}),
    {"name": "process_name", "ph": "M", "pid": 7, "tid": 0, "ts": 1, "args": {"name": "/data/falcon/bin/python3"}},
    {"name": "thread_name", "ph": "M", "pid": 7, "tid": 7, "ts": 1, "args": {"name": "thread 7 (zaphodb)"}},
    {"name": "process_labels", "ph": "M", "pid": 7, "tid": 0, "ts": 1, "args": {"labels": "CPU"}},
]


def written(folder: Path, text: str | bytes, name: str = "trace.json") -> Path:
    path = folder / name
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def read(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def redacted(path: Path, name: str = "copy.json") -> bytes:
    """Redact a trace: a check finds the same before, and nothing afterwards, and a second time changes nothing."""
    out = path.parent / name
    with untouched(path):
        expected = tk.unredacted(path)
    assert tk.redact(path, out, overwrite=True) == expected
    assert not any(tk.unredacted(out).values())
    again = path.parent / f"again-{name}"
    tk.redact(out, again, overwrite=True)
    assert again.read_bytes() == out.read_bytes()
    return read(out)


@pytest.mark.parametrize("name", ["trace.json", "trace.pt.trace.json.gz"])
@pytest.mark.parametrize("layout", [{}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}])
def test_nothing_private_is_left(name: str, layout: dict[str, Any], tmp_path: Path) -> None:
    document = {"schemaVersion": 1, **FACTS, "traceEvents": EVENTS, "later": {"env": ENVIRONMENT, "USER": "zaphodb"}}
    path = written(tmp_path, json.dumps(document, **layout), name)
    made = redacted(path, "copy.json.gz" if name.endswith(".gz") else "copy.json")
    found = json.loads(made)
    flat = json.dumps(found, ensure_ascii=False)
    assert [value for value in PRIVATE if value in flat] == []
    assert found["metadata"] == {"env": {}, "cwd": "", "argv": [], "seed": 7}
    assert found["variables"] == {"any": {}, "list": []}
    assert found["config"]["args_list"] == ["--password", "xxxxxxxxx"]
    assert found["host_name"].startswith("redacted-")
    assert len(set(found["cluster"]["node_list"])) == 2
    assert found["distributedInfo"] | {"master_addr": ""} == FACTS["distributedInfo"] | {"master_addr": ""}
    assert found["traceName"] == "/data/xxxxxx/trace.json"
    names = [event["name"] for event in found["traceEvents"]]
    assert names[:3] == ["aten::mm", "/home/xxxxxxx/xxxxxx/train.py(12): forward",
                         "xxxxxxx's \\ loop \"quoted\" on xxxxxxxxxxxxx"]  # fmt: skip
    assert found["traceEvents"][3]["args"]["Call stack"] == "/data/xxxxxx/a.py(3): f;torch/nn/modules/module.py(1): g"
    assert [e["args"]["name"] for e in found["traceEvents"][4:6]] == ["python3", "thread 7 (xxxxxxx)"]


def test_all_other_bytes_stay(tmp_path: Path) -> None:
    """Each line holds one value, so that lines without private values can be compared."""
    document = {"schemaVersion": 1, **FACTS, "traceEvents": EVENTS}
    path = written(tmp_path, json.dumps(document, indent=1))
    made = redacted(path).decode()
    whole = re.sub(r'(?s)"env": \{.*?\}', '"env": {}', path.read_text())
    whole = re.sub(r'(?s)("(?:any)": )\{.*?\}', r"\1{}", whole)
    whole = re.sub(r'(?s)("(?:argv|list)": )\[.*?\]', r"\1[]", whole)
    lines = list(zip(whole.splitlines(), made.splitlines(), strict=True))
    different = [before for before, after in lines if before != after]
    assert len(different) < len(lines) / 3
    assert all(re.search("|".join(PRIVATE) + "|trace_id|uuid|deepthought43|cwd|name", line) for line in different)


def test_tables_of_the_copy_are_equal(tmp_path: Path) -> None:
    out = tmp_path / "copy.json.gz"
    counts = tk.redact(files.TRACE, out)
    assert out.read_bytes().startswith(b"\x1f\x8b")
    assert not any(counts.values())
    assert read(out) == read(files.TRACE)
    with tk.load(files.TRACE) as before, tk.load(out) as after:
        assert all(before[name].equals(after[name]) for name in before.tables)


def events_only(*events: str) -> str:
    return '{"schemaVersion": 1, "username": "zaphodb", "traceEvents": [' + ",\n".join(events) + "]}"


def quoted(name: str) -> str:
    """An event whose name PyTorch did not escape."""
    return f'{{"ph": "X", "cat": "cpu_op", "name": "{name}", "pid": 7, "tid": 7, "ts": 1, "dur": 1, "args": {{}}}}'


def test_quotes_that_were_not_escaped_hide_nothing(tmp_path: Path) -> None:
    text = events_only(quoted('f("zaphodb", {"a": 1}, password="hunter2 x")'), quoted("aten::mm"), quoted('b"c'))
    made = redacted(written(tmp_path, text)).decode()
    assert quoted('f("xxxxxxx", {"a": 1}, password="xxxxxxxxx")') in made
    assert quoted('b"c') in made


def test_arrays_of_events_and_byte_order_marks_are_read(tmp_path: Path) -> None:
    mail = quoted("by alice@example.org")
    for before, after in (("[", "]"), ("[", ""), ("\ufeff[", "]\n"), (" [ ", " ]  ")):
        made = redacted(written(tmp_path, f"{before}{mail}{after}")).decode()
        assert made == f"{before}{mail}{after}".replace("alice@example.org", "xxxxx@xxxxxxx.xxx")


def test_sections_end_after_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result does not depend on where the file is divided."""
    document = {"schemaVersion": 1, "traceEvents": EVENTS * 3, **FACTS}
    path = written(tmp_path, json.dumps(document))
    key = b"0123456789abcdef"
    tk.redact(path, tmp_path / "whole.json", key=key)
    for size in (64, 500, 1777):
        monkeypatch.setattr(stream.Stream.__init__, "__kwdefaults__", {"block_bytes": size})
        tk.redact(path, tmp_path / "parts.json", key=key, overwrite=True)
        assert (tmp_path / "parts.json").read_bytes() == (tmp_path / "whole.json").read_bytes()


def test_large_members_are_divided_and_large_private_members_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream.Stream.__init__, "__kwdefaults__", {"block_bytes": 1000})
    monkeypatch.setattr(json_text, "MAX_SECTION_BYTES", 5000)
    large = ["zaphodb of the list"] * 2000
    path = written(tmp_path, json.dumps({"schemaVersion": 1, "username": "zaphodb", "INFO": large, "traceEvents": []}))
    assert json.loads(redacted(path))["INFO"] == ["xxxxxxx of the list"] * 2000
    path = written(tmp_path, json.dumps({"schemaVersion": 1, "argv": large, "traceEvents": []}))
    with pytest.raises(CorruptTraceError, match="a value of the kind 'command line' that is too long to be redacted"):
        tk.redact(path, tmp_path / "none.json")
    assert not (tmp_path / "none.json").exists()


@pytest.mark.parametrize(
    "text",
    [
        '{"schemaVersion": 1, "traceEvents": [' + quoted("a"),
        '{"schemaVersion": 1, "traceEvents": [' + quoted("a")[:-70],
        '{"schemaVersion": 1, "traceEvents": [' + quoted("a") + ", alice]}",
        '{"schemaVersion": 1, "traceEvents": [' + quoted("a") + "]} alice",
    ],
)
def test_damage_is_an_error_and_nothing_is_written(text: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    if text.endswith("}}"):
        redacted(path)  # complete events of a truncated document
        return
    with pytest.raises(CorruptTraceError, match="the JSON is invalid or truncated near byte"):
        tk.redact(path, tmp_path / "copy.json")
    with pytest.raises(CorruptTraceError):
        tk.unredacted(path)
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]


@pytest.mark.slow
def test_damaged_gzip_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(events_only(quoted("a")).encode())[:-4])
    with pytest.raises(CorruptTraceError, match="the compressed data ends before"):
        tk.redact(path, tmp_path / "copy.json.gz")
    path.write_bytes(gzip.compress(b'{"schemaVersion": 1, "traceEvents": [' + b" " * (80 << 20) + b"]}"))
    with pytest.raises(CorruptTraceError, match="exceeds tracekit's limit of 250 times"):
        tk.redact(path, tmp_path / "copy.json.gz")
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json.gz"]


@pytest.mark.parametrize(
    ("key", "value", "made"),
    [
        ("ENV", "PATH=/bin\nUSER=a\n", ""),
        ("os.environ", {"A": "bcdefghij"}, {}),
        ("environment_variables", ["A=bcdefghij"], []),
        ("cmdLine", "python /x/y", ""),
        ("command_line_args", ["a", "--password=zz zz"], []),
        ("command line", "a", ""),
        ("sys_argv", ["a"], []),
        ("program_arguments", ["a"], []),
        ("workingDirectory", "/data/p", ""),
        ("userName", "a", ""),
        ("SLURM_JOB_USER", "a", ""),
        ("stdout", "text", ""),
        ("ip", "8.8.8.8", "x.x.x.x"),
        ("mac", "001a2b3c4d5e", "xxxxxxxxxxxx"),
        ("secretAccessKey", "wJalrXUtnFEMI/K7MDENG", "x" * 21),
        ("HF_TOKEN", 'two "words"', 'xxxx"xxxxx"'),
        ("WANDB_API_KEY", "0123456789abcdef", "x" * 16),
        ("note", {"args": ["--host", "h", "--api-key", "k3y"]}, {"args": ["--host", "h", "--api-key", "xxx"]}),
        ("note", {"run": ["mysql", "-u", "me", "-pk3y", "db"]}, {"run": ["mysql", "-u", "me", "-pxxx", "db"]}),
        ("note", {"run": ["sshpass", "-pk3y", "ssh"]}, {"run": ["sshpass", "-pxxx", "ssh"]}),
        ("note", {"run": ["gcc", "-pthread", "-p"]}, {"run": ["gcc", "-pthread", "-p"]}),
        ("db.password", 20240117, 10000000),
        ("API_KEY", -12.5e-30, -10.0e-00),
        ("node_guid", 7766554433221100, 1000000000000000),
        ("serialNumber", 1652323001234, 1000000000000),
        ("token", 17, 17),
        ("mac", 12, 12),
    ],
)  # fmt: skip
def test_private_members_are_recognized_by_their_keys(key: str, value: Any, made: Any, tmp_path: Path) -> None:
    text = json.dumps(
        {"schemaVersion": 1, "traceEvents": [event("a", **{key: value})], "more": {key: value}, key: value}
    )
    found = json.loads(redacted(written(tmp_path, text)))
    assert found[key] == found["more"][key] == found["traceEvents"][0]["args"][key] == made


def has_many_digits(number: float) -> bool:
    """Return whether a number has enough digits to identify something, unlike 1e+17."""
    return sum(character.isdigit() for character in str(number)) >= 10


@given(
    key=st.sampled_from(
        ["password", "db_passwd", "API-KEY", "hf_token", "pwd", "secretKey", "guid", "gpu.serial", "mac"]
    ),
    number=(st.integers(10**9, 2**63) | st.floats(1e9, 1e17, allow_nan=False)).filter(has_many_digits),
    indent=st.none() | st.integers(0, 9),
)
def test_numbers_of_private_keys_are_overwritten(
    key: str, number: float, indent: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The copy is valid JSON with numbers of the same length, and redacting it again changes nothing."""
    document = {"schemaVersion": 1, "x": {key: number, "n": number}, "traceEvents": [event("a", **{key: number})]}
    folder = tmp_path_factory.mktemp("numbers")
    path = written(folder, json.dumps(document, indent=indent))
    counts, copy = tk.redact(path, folder / "copy.json"), (folder / "copy.json").read_text("utf-8")
    assert sum(counts.values()) == (0 if set(str(number)[1:]) <= set("0.") and str(number)[0] == "1" else 2)
    found = json.loads(copy)
    assert found["x"]["n"] == number
    assert len(copy) == len(path.read_text("utf-8"))
    assert set(re.sub(r"[eE.+\-]", "", json.dumps(found["x"][key]))) <= set("10")
    assert found["x"][key] == found["traceEvents"][0]["args"][key]
    assert not any(tk.unredacted(folder / "copy.json").values())


@pytest.mark.parametrize(
    "key", ["host", "Hostname", "hostName", "Host Name", "node_name", "SLURM_JOB_NODELIST", "fqdn"]
)
def test_hosts_become_pseudonyms_whatever_their_key_is(key: str, tmp_path: Path) -> None:
    text = json.dumps({"schemaVersion": 1, "traceEvents": [event("on deepthought42")], key: "deepthought42"})
    found = json.loads(redacted(written(tmp_path, text)))
    assert re.fullmatch("redacted-[0-9a-f]{12}", found[key])
    assert found["traceEvents"][0]["name"] == "on xxxxxxxxxxxxx"


def test_local_names_and_public_keys_stay(tmp_path: Path) -> None:
    facts = {"host": "localhost", "addr": "127.0.0.1", "user": 7, "environment": {}, "command": "", "device": "cuda",
             "tw_job": "job-7", "hosts": [{"gpus": 8}], "mast_job_environment": "prod", "PATHS": ["a"]}  # fmt: skip
    text = json.dumps({"schemaVersion": 1, **facts, "traceEvents": [event("user")]})
    assert redacted(written(tmp_path, text)).decode() == text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.sampled_from('a"\\\n/é{}[],:😀'), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", '"', "\\"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(json_values, st.booleans(), st.sampled_from([None, 1]))
def test_structure_is_that_of_a_parser(value: Any, ascii_only: bool, indent: int | None) -> None:
    data = json.dumps({"k": value}, ensure_ascii=ascii_only, indent=indent).encode()
    text = json_text._locate_strings(data, 0, is_complete=True)
    assert text is not None
    strings = [json.loads(b'"' + text.get_string(i) + b'"') for i in range(len(text.strings.starts))]
    assert strings == list(strings_of({"k": value}))
    opened = [i for i, is_outside in enumerate(text._is_outside) if is_outside and data[i : i + 1] in (b"{", b"[")]
    for at in opened:
        end = text.find_closing_bracket(at)
        assert end is not None
        json.loads(data[at : end + 1])
        inner = [other for other in opened if other < at]
        expected = max((o for o in inner if (text.find_closing_bracket(o) or 0) > at), default=None)
        assert text.find_enclosing_bracket(at) == expected


def strings_of(value: Any) -> Any:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for inner in value:
            yield from strings_of(inner)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from strings_of(inner)


CAPTURES = sorted(files.CORPUS.rglob("*.json*")) if files.CORPUS.is_dir() else []


@pytest.mark.corpus
@pytest.mark.skipif(not CAPTURES, reason="no corpus beside the checkout")
@pytest.mark.parametrize("number", range(len(CAPTURES)))
def test_public_traces_keep_their_tables(number: int, tmp_path: Path) -> None:
    path = CAPTURES[number]
    out = tmp_path / path.name
    try:
        counts = tk.redact(path, out)
    except CorruptTraceError:
        assert not out.exists()
        return
    assert tk.unredacted(path) == counts
    assert not any(tk.unredacted(out).values())
    before, after = json.loads(read(path).decode("utf-8", "replace"), strict=False), json.loads(read(out), strict=False)
    private = [key for key in before if isinstance(before, dict) and re.search("user|host", key)]
    assert all(before[key] != after[key] for key in private if isinstance(before[key], str)), "a private member is left"
    with warnings.catch_warnings(), tk.load(path) as mine, tk.load(out) as theirs:
        warnings.simplefilter("ignore", TracekitWarning)
        for name in mine.tables:
            a, b = (pl.from_arrow(trace[name]) for trace in (mine, theirs))
            assert isinstance(a, pl.DataFrame)
            assert isinstance(b, pl.DataFrame)
            assert a.shape == b.shape
            numbers = pl.selectors.numeric()
            assert a.select(numbers).equals(b.select(numbers)), name


def test_a_key_makes_the_same_pseudonyms_as_in_reports(tmp_path: Path) -> None:
    from tracekit.readers.redaction.pseudonyms import Pseudonyms

    key = b"0123456789abcdef"
    path = written(tmp_path, json.dumps({"schemaVersion": 1, "host_name": "deepthought42", "traceEvents": EVENTS}))
    tk.redact(path, tmp_path / "copy.json", key=key)
    pseudonym = Pseudonyms(key).compute_host_pseudonym(b"deepthought42").decode()
    assert json.loads((tmp_path / "copy.json").read_bytes())["host_name"] == pseudonym


def test_a_changed_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, events_only(quoted("a")))
    original = redact._NameCollector.collect_names

    def collect_names(self: Any, text: Any) -> None:
        path.write_text(path.read_text() + " ")
        original(self, text)

    monkeypatch.setattr(redact._NameCollector, "collect_names", collect_names)
    with pytest.raises(TracekitError, match="changed"):
        tk.redact(path, tmp_path / "copy.json")
    assert not (tmp_path / "copy.json").exists()


def test_escaped_characters_in_keys(tmp_path: Path) -> None:
    path = tmp_path / "made.json"
    args = r'{"\u0065nv":{"A":"zqvalue1"},"us\u0065r":"zqbob","passw\u006frd":"zqhunter2","p\u0061ssword":12345678}'
    event = '{"ph":"X","pid":1,"tid":2,"ts":1,"dur":2,"name":"gemm","args":%s}'
    path.write_bytes(b"\xef\xbb\xbf" + f'{{"traceEvents":[{event % args},\r\n{event % args}]}}'.encode())
    counts = tk.redact(path, out := tmp_path / "copy.json")
    kinds = ("environment", "user name", "secret")
    assert [counts[kind] for kind in kinds] == [2, 2, 4]
    assert [text for text in (b"zq", b"12345678") if text in out.read_bytes()] == []
    assert out.read_bytes().count(b"gemm") == 2


def test_screenshots_are_emptied(tmp_path: Path) -> None:
    path = tmp_path / "made.json"
    event = {"ph": "O", "pid": 1, "tid": 2, "ts": 1, "name": "Screenshot", "args": {"snapshot": "/9j/4AAQSkZJRg"}}
    slice_ = {"ph": "X", "pid": 1, "tid": 2, "ts": 1, "dur": 1, "name": "paint"}
    path.write_text(json.dumps({"traceEvents": [slice_, event]}))
    assert tk.redact(path, out := tmp_path / "copy.json")["program output"] == 1
    assert json.loads(out.read_text())["traceEvents"] == [slice_, event | {"args": {"snapshot": ""}}]


def test_lines_of_exports_of_nsys(tmp_path: Path) -> None:
    first, *rest = (FIXTURES / "nsys_jsonlines" / "nvtx_features.jsonlines").read_text("utf-8").splitlines()
    table = [*json.loads(first)["data"], "PATH=/bin\0HOME=/home/zqgreg\0", "HOME=/a\0PATH=/b\0JOB=zqvalue12345\0"]
    command = '{"Type":1,"CommEvent":{"GlobalPid":"9","Command":"/home/zqgreg/bin/tool --key zqargument"}}'
    lines = [json.dumps({"data": table}, separators=(",", ":")), command, *rest]
    path = tmp_path / "made.jsonlines"
    path.write_text("\n".join(lines), "utf-8")
    counts = tk.redact(path, out := tmp_path / "copy.jsonlines")
    assert (counts["environment"], counts["command line"]) == (2, 2)
    assert b"zq" not in out.read_bytes()
    copied = out.read_text("utf-8").splitlines()
    assert json.loads(copied[0])["data"][:-2] == json.loads(first)["data"]
    assert json.loads(copied[1])["CommEvent"]["Command"] == "tool"
    assert copied[2:] == rest
