"""Exports redacted: what is private is gone from the bytes of the file, and every other value is as it was."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import tracekit as tk
from tests import fork_server
from tests.builders.nsys_sqlite import FIXTURES, edited, plain, untouched
from tests.conftest import ALL
from tests.helpers import number_pseudonyms
from tracekit.errors import CorruptTraceError, ExportError, TracekitError, TracekitWarning, UnsupportedVersionError
from tracekit.readers.redaction import databases
from tracekit.readers.redaction import nsys_sqlite as redact
from tracekit.readers.redaction.patterns import KINDS

CASES = 60 if ALL else 12
HOST = re.compile(r"redacted-[0-9a-f]{12}")
Dump = dict[str, dict[int, tuple[object, ...]]]

ENVIRONMENT = "PATH=/opt/alice/bin\0USER=alice\0HOSTNAME=gpu17.cluster.example\0TOKEN=s3cr3t-t0k3n\0"
LINES = "SHELL=/bin/zsh\nUSER=carol\nTOKEN=an0ther-t0k3n"
PLANTED = (
    "INSERT INTO StringIds VALUES (9001, ?), (9002, ?), (9003, 'epoch 1 by alice\n'), (9004, 'PATH=/opt/lonely')",
    "INSERT INTO ProcessStreams SELECT globalPid, filenameId, 9003 FROM ProcessStreams LIMIT 1",
    "UPDATE META_DATA_EXPORT SET value = 'gpu17.cluster.example' WHERE name = 'EXPORT_HOST'",
    "UPDATE META_DATA_EXPORT SET value = 'alice' WHERE name = 'EXPORT_USER'",
    "UPDATE META_DATA_EXPORT SET value = 'alice.nsys-rep' WHERE name = 'EXPORT_PARAM_INPUT_FILE'",
    "UPDATE META_DATA_EXPORT SET value = '/home/alice/runs/a.nsys-rep' WHERE name LIKE 'EXPORT_PARAM_INPUT_PATH%'",
    "UPDATE META_DATA_CAPTURE SET value = '--password=hunter2' WHERE name = 'PROCESS_0:ARGUMENT_0'",
    "UPDATE META_DATA_CAPTURE SET value = 'TOKEN=\"thi7d-t0k3n\"' WHERE value LIKE 'LD_PRELOAD%'",
    "UPDATE TARGET_INFO_SYSTEM_ENV SET value = 'HOME=/home/alice;TOKEN=f0u7th-t0k3n' WHERE nameEnum = 610",
    """UPDATE TARGET_INFO_SYSTEM_ENV SET value = '{"Nics":[{"Name":"mlx5_0","GUID":"7766554433221100"}]}'
       WHERE nameEnum = 910""",
    "UPDATE PROCESSES SET name = '/data/project/bin/solver' WHERE pid = 541",
    "UPDATE NVTX_EVENTS SET text = 'step of alice at gpu17' WHERE rowid = (SELECT max(rowid) FROM NVTX_EVENTS)",
    """INSERT INTO DIAGNOSTIC_EVENT SELECT 1, timestampType, source, severity, 'see /home/bob/log on gpu17', globalPid
       FROM DIAGNOSTIC_EVENT LIMIT 1""",
    "CREATE TABLE TARGET_INFO_NIC_INFO (GUID INTEGER NOT NULL, stateName TEXT, nicId INTEGER, name TEXT)",
    "INSERT INTO TARGET_INFO_NIC_INFO VALUES (-7751348055725612106, 'gpu18.cluster.example', 0, 'mlx5_0')",
    "INSERT INTO TARGET_INFO_NIC_INFO VALUES (0, 'Local (CLI)', 1, 'mlx5_1')",
    "CREATE TABLE scratch (any, note TEXT, data BLOB)",
    "INSERT INTO scratch VALUES ('alice', 'malice of gpu17', x'00616c69636500626f62'), (7, NULL, x'ff'), (1.5, '', '')",
)  # fmt: skip
FILLED = """CREATE TABLE filled AS
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 9999) SELECT i, hex(zeroblob(99)) FROM n"""
SECRETS = (
    "t0k3n", "hunter2", "alice@", "/opt/alice", "lonely", "cluster.example", "epoch 1 by", "/data/project",
    "/home/alice", "/home/bob", "7766554433221100", "zsh",
)  # fmt: skip


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A real export with secrets of every kind."""
    path = edited(tmp_path, of="nvtx_features", name="planted.sqlite")
    with contextlib.closing(sqlite3.connect(path)) as db:
        for statement in PLANTED:
            db.execute(statement, (ENVIRONMENT, LINES) if "?" in statement else ())
        db.commit()
    return path


def dump(path: Path) -> Dump:
    """Every row of every table by its number, with the types that SQLite stores."""
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)) as db:
        db.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
        names = [n for (n,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {n: {r[0]: r[1:] for r in db.execute(f'SELECT rowid, * FROM "{n}"')} for n in names}


def changed(before: Dump, after: Dump) -> set[tuple[str, object]]:
    """Tables and, of what kind the changed rows are, their first values."""
    assert {t: list(rows) for t, rows in before.items()} == {t: list(rows) for t, rows in after.items()}
    return {(t, row[0]) for t, rows in before.items() for i, row in rows.items() if after[t][i] != row}


def redacted(path: Path, name: str = "redacted.sqlite") -> tuple[Path, dict[str, int]]:
    out = path.with_name(name)
    return out, tk.redact(path, out, overwrite=True)


def test_what_is_private_is_in_no_byte_of_the_copy(planted: Path) -> None:
    before = planted.read_bytes()
    assert [s for s in SECRETS if s != "alice@" and s.encode() not in before] == []
    out, _ = redacted(planted)
    after = out.read_bytes()
    assert [s for s in SECRETS if s.encode() in after] == []
    assert after.count(b"alice") == after.count(b"malice") == 1


def test_counts_are_by_kind(planted: Path) -> None:
    _, counts = redacted(planted)
    assert list(counts) == list(KINDS)
    assert counts == {
        "environment": 14,
        "command line": 8,
        "host name": 4,
        "user name": 1,
        "program output": 2,
        "hardware address": 2,
        "unique id": 4,
        "PCI address": 3,
        "network address": 0,
        "e-mail address": 0,
        "secret": 0,
        "path": 0,
        "name in another text": 6,
    }


def test_every_other_value_is_as_it_was(planted: Path) -> None:
    out, _ = redacted(planted)
    settings = {r[0] for r in dump(planted)["META_DATA_CAPTURE"].values()}
    private = {s for s in settings if any(m in s for m in ("ARGUMENT", "COMMAND", "WORKING", "VARIABLE", "DISPLAY"))}
    exports = (
        "HOST",
        "USER",
        "PARAM_INPUT_FILE",
        *(f"PARAM_{p}_PATH{a}" for p in ("INPUT", "OUTPUT") for a in ("", "_ABS")),
    )
    strings = {("StringIds", i) for i in (9001, 9002, 9003, 9004)}
    printed = {("StringIds", i) for (i,) in plain(planted, "SELECT contentId FROM ProcessStreams")}
    found = changed(dump(planted), dump(out))
    assert found - printed == (strings - printed) | {("META_DATA_CAPTURE", s) for s in private} | {
        *(("META_DATA_EXPORT", f"EXPORT_{n}") for n in exports),
        ("TARGET_INFO_SYSTEM_ENV", 1 << 48),
        ("PROCESSES", plain(planted, "SELECT globalPid FROM PROCESSES WHERE pid = 541")[0][0]),
        ("NVTX_EVENTS", plain(planted, "SELECT start FROM NVTX_EVENTS ORDER BY rowid DESC")[0][0]),
        ("DIAGNOSTIC_EVENT", 1),
        ("TARGET_INFO_NIC_INFO", -7751348055725612106),
        ("TARGET_INFO_GPU", 1 << 48),
        ("META_DATA_CAPTURE", "PROFILING_SESSION_UUID"),
        ("scratch", "alice"),
    }
    values = dict(plain(out, "SELECT nameEnum, value FROM TARGET_INFO_SYSTEM_ENV"))
    assert values[610] == ""
    assert HOST.fullmatch(values[619])
    assert values[910] == '{"Nics":[{"Name":"mlx5_0","GUID":""}]}'
    assert plain(out, "SELECT text FROM NVTX_EVENTS ORDER BY rowid DESC")[0] == ("step of xxxxx at xxxxx",)
    assert plain(out, "SELECT text FROM DIAGNOSTIC_EVENT WHERE timestamp = 1") == [("see /home/xxx/log on xxxxx",)]
    (state,) = {s for (s,) in plain(out, "SELECT stateName FROM TARGET_INFO_NIC_INFO WHERE nicId = 0")}
    assert HOST.fullmatch(state)
    assert plain(out, "SELECT GUID, stateName FROM TARGET_INFO_NIC_INFO") == [(0, state), (0, "Local (CLI)")]
    assert plain(out, "SELECT name FROM PROCESSES WHERE pid = 541") == [("solver",)]
    assert plain(out, "SELECT * FROM scratch") == [
        ("xxxxx", "malice of xxxxx", b"\0xxxxx\0bob"), (7, None, b"\xff"), (1.5, "", ""),
    ]  # fmt: skip


def test_schema_indexes_views_and_settings_of_the_file_stay(planted: Path) -> None:
    with contextlib.closing(sqlite3.connect(planted)) as db:
        db.execute("CREATE INDEX by_start ON NVTX_EVENTS(start)")
        db.execute("CREATE VIEW names AS SELECT value FROM StringIds")
        db.execute("CREATE TABLE keyed (name TEXT PRIMARY KEY, n INTEGER) WITHOUT ROWID")
        db.execute("INSERT INTO keyed VALUES ('alice', 1), ('b', 2)")
        db.execute("CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, twice AS (2 * id), s TEXT)")
        db.execute("INSERT INTO counted (id, s) VALUES (5, 'of alice')")
        db.execute("PRAGMA user_version = 77")
        db.commit()
    out, _ = redacted(planted)
    sql = "SELECT type, name, sql FROM sqlite_schema ORDER BY name"
    assert plain(out, sql) == plain(planted, sql)
    for pragma in ("user_version", "schema_version", "page_size", "encoding", "application_id"):
        assert plain(out, f"PRAGMA {pragma}") == plain(planted, f"PRAGMA {pragma}")
    assert plain(out, "SELECT * FROM keyed ORDER BY n") == [("xxxxx", 1), ("b", 2)]
    assert plain(out, "SELECT id, twice, s FROM counted") == [(5, 10, "of xxxxx")]
    assert plain(out, "SELECT seq FROM sqlite_sequence WHERE name = 'counted'") == [(5,)]
    assert plain(out, "PRAGMA integrity_check") == [("ok",)]


def test_row_numbers_with_gaps_are_kept(tmp_path: Path) -> None:
    gaps = edited(tmp_path, "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid % 3 = 0")
    out, _ = redacted(gaps)
    sql = "SELECT rowid, * FROM CUPTI_ACTIVITY_KIND_KERNEL"
    assert plain(out, sql) == plain(gaps, sql)
    with tk.load(gaps) as a, tk.load(out) as b:
        assert a["kernels"].equals(b["kernels"])


def test_nothing_lingers_of_what_was_deleted_before(tmp_path: Path) -> None:
    path = edited(tmp_path, "UPDATE StringIds SET value = 'd3l3ted-t0k3n' WHERE id = 1")
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA secure_delete = OFF")
        db.execute("CREATE TABLE gone AS SELECT 'dr0pped-t0k3n' || value v FROM StringIds")
        db.execute("UPDATE StringIds SET value = 'x' WHERE id = 1")
        db.execute("DROP TABLE gone")
        db.commit()
    assert b"dr0pped-t0k3n" in path.read_bytes()
    out, _ = redacted(path)
    assert b"t0k3n" not in out.read_bytes()


def test_the_input_is_not_touched(planted: Path) -> None:
    out = planted.parent / "folder" / "out.sqlite"
    out.parent.mkdir()
    with untouched(planted):
        tk.redact(planted, out)
    assert [p.name for p in out.parent.iterdir()] == ["out.sqlite"]


def test_a_second_time_changes_nothing(planted: Path) -> None:
    once, _ = redacted(planted)
    twice, counts = redacted(once, "twice.sqlite")
    assert not any(counts.values())
    assert twice.read_bytes() == once.read_bytes()


def test_many_names_are_overwritten(tmp_path: Path) -> None:
    users = "\0".join(f"USER=person{i:03}" for i in range(150))
    path = edited(tmp_path, "INSERT INTO StringIds VALUES (9002, 'person149 and person000'), (9003, 'person077')")
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO StringIds VALUES (9001, ?)", (users,))
        db.commit()
    out, counts = redacted(path)
    assert counts["name in another text"] == 2
    assert plain(out, "SELECT value FROM StringIds WHERE id > 9001") == [("xxxxxxxxx and xxxxxxxxx",), ("xxxxxxxxx",)]


def test_text_that_is_not_utf8_is_kept_or_overwritten(tmp_path: Path) -> None:
    path = edited(
        tmp_path,
        "UPDATE META_DATA_EXPORT SET value = 'alice' WHERE name = 'EXPORT_USER'",
        "INSERT INTO StringIds VALUES (9001, CAST(x'e96120616c696365e9' AS TEXT)), (9002, CAST(x'e9' AS TEXT))",
    )
    out, _ = redacted(path)
    sql = "SELECT typeof(value), CAST(value AS BLOB) FROM StringIds WHERE id > 9000"
    assert plain(out, sql) == [("text", b"\xe9a xxxxx\xe9"), ("text", b"\xe9")]


def test_old_exports_without_settings_are_redacted(tmp_path: Path) -> None:
    drop = (f"DROP TABLE {t}" for t in ("META_DATA_CAPTURE", "META_DATA_EXPORT", "TARGET_INFO_SYSTEM_ENV", "PROCESSES"))
    path = edited(tmp_path, *drop, "INSERT INTO StringIds VALUES (9001, 'A=1' || char(0) || 'USER=alice')")
    out, counts = redacted(path)
    assert {k: n for k, n in counts.items() if n} == {"environment": 1, "unique id": 2, "PCI address": 2}
    assert plain(out, "SELECT value FROM StringIds WHERE id = 9001") == [("",)]


def test_ids_of_devices_are_overwritten_in_all_tables(tmp_path: Path) -> None:
    """Equal ids become equal numbers. Small numbers, and columns whose names only look alike, stay."""
    guid, mac = 0xB8CEF60300112233 - 2**64, 0xB8CEF6001122
    path = edited(
        tmp_path,
        "CREATE TABLE NET_IB_DEVICE_PORT_INFO (guid INTEGER, lid INTEGER)",
        'CREATE TABLE "any table" (nodeGuid, PORT_GUID TEXT, "macAddress" INTEGER, guidance INTEGER, name TEXT)',
        f"INSERT INTO NET_IB_DEVICE_PORT_INFO VALUES ({guid}, 3)",
        f"""INSERT INTO "any table" VALUES ({guid}, 'b8cef60300112233', {mac}, {2**40}, 'mlx5'), (7, '', 0, 1, ''),
        ('7766554433221100', '7766554433221100', NULL, NULL, NULL)""",
    )
    out, counts = redacted(path)
    first, *others = plain(out, 'SELECT * FROM "any table"')
    assert (first[0],) == plain(out, "SELECT guid FROM NET_IB_DEVICE_PORT_INFO")[0]
    assert 7 < first[0] < 2**32
    assert (first[1:], 0 < first[2] < 2**32) == (("x" * 16, first[2], 2**40, "mlx5"), True)
    assert others == [(7, "", 0, 1, ""), ("x" * 16, "x" * 16, None, None, None)]
    assert counts["hardware address"] == 6
    assert not any(tk.unredacted(out).values())


@pytest.mark.parametrize(
    ("statement", "error", "said"),
    [
        (
            "CREATE TRIGGER t AFTER UPDATE ON StringIds BEGIN DELETE FROM StringIds; END",
            TracekitError,
            "the database has SQL triggers (count: 1), which SQLite would run during redaction\nHint: export it again",
        ),
    ],
    ids=["trigger"],
)
def test_what_cannot_be_changed_is_refused(statement: str, error: type[Exception], said: str, tmp_path: Path) -> None:
    path = edited(tmp_path, "DELETE FROM META_DATA_CAPTURE WHERE name = 'CAPTURE_EVENT_TYPE'", statement)
    with pytest.raises(error) as caught:
        tk.redact(path, tmp_path / "out.sqlite")
    assert str(caught.value).startswith(f"{path}: {said}")
    assert [p.name for p in tmp_path.iterdir()] == ["edited.sqlite"]


def test_values_of_unique_columns_stay_different(tmp_path: Path) -> None:
    unique = "CREATE UNIQUE INDEX one ON META_DATA_CAPTURE(name, value)"
    path = edited(tmp_path, "DELETE FROM META_DATA_CAPTURE WHERE name = 'CAPTURE_EVENT_TYPE'", unique)
    out = tmp_path / "out.sqlite"
    assert any(tk.redact(path, out).values())
    rows = []
    for file in (path, out):
        with contextlib.closing(sqlite3.connect(file)) as db:
            rows.append(db.execute("SELECT name, value FROM META_DATA_CAPTURE").fetchall())
            assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'one'").fetchone() == (1,)
    assert [len(set(each)) for each in rows] == [len(rows[0])] * 2
    variables = [value for name, value in rows[1] if name.endswith("ENVIRONMENT_VARIABLE")]
    assert variables == ["", *(f" ({number})" for number in range(2, len(variables) + 1))]


def test_other_encodings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "wide.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA encoding = 'UTF-16le'")
        db.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        db.execute("CREATE TABLE ThreadNames (nameId INTEGER)")
        db.commit()
    with pytest.raises(
        UnsupportedVersionError,
        match="the strings of the export are encoded in UTF-16le, but redaction supports only UTF-8",
    ):
        tk.redact(path, tmp_path / "out.sqlite")


@pytest.mark.parametrize("keep", [0.0, 0.01, 0.3, 0.7, 0.99])
def test_a_file_cut_short_gives_no_copy(keep: float, tmp_path: Path) -> None:
    data = (FIXTURES / "graph_node.sqlite").read_bytes()
    path = tmp_path / "cut.sqlite"
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(TracekitError, match=r"cut\.sqlite: .*\nHint: "):
        tk.redact(path, tmp_path / "out.sqlite")
    assert [p.name for p in tmp_path.iterdir()] == ["cut.sqlite"]


@pytest.mark.parametrize("page", [2, 5, 20, 40])
def test_damaged_pages_give_an_error_or_a_copy_but_never_half_of_one(page: int, tmp_path: Path) -> None:
    data = bytearray((FIXTURES / "graph_node.sqlite").read_bytes())
    data[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path, out = tmp_path / "damaged.sqlite", tmp_path / "out.sqlite"
    path.write_bytes(data)
    with pytest.raises(
        CorruptTraceError,
        match=r"damaged\.sqlite: (?:the export )?cannot be re(?:ad|dacted): .*\nHint: export it again",
    ):
        tk.redact(path, out)
    assert [p.name for p in tmp_path.iterdir()] == ["damaged.sqlite"]


@pytest.mark.slow
def test_every_mutation_gives_the_same_tables_or_an_error(tmp_path: Path) -> None:
    whole = (FIXTURES / "graph_node.sqlite").read_bytes()
    path, out = tmp_path / "case.sqlite", tmp_path / "out.sqlite"
    ended = {"error": 0, "copy": 0}
    for case in range(CASES):
        dice = random.Random(case)
        data = bytearray(whole)
        for _ in range(dice.choice((1, 3, 20))):
            data[dice.randrange(100 if dice.random() < 0.2 else len(data))] = dice.randrange(256)
        path.write_bytes(data)
        out.unlink(missing_ok=True)
        ended[outcome(path, out)] += 1
        assert sorted(p.name for p in tmp_path.iterdir()) == ["case.sqlite", *(["out.sqlite"] if out.exists() else [])]
    assert min(ended.values()) > CASES // 10


def outcome(path: Path, out: Path) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TracekitWarning)
        try:
            tk.redact(path, out)
        except TracekitError as e:
            return "error" if str(e).startswith(f"{path}: ") and not out.exists() else str(e)
        assert tables(out) == tables(path)
    return "copy"


def tables(path: Path) -> dict[str, object] | None:
    try:
        with tk.load(path) as trace:
            return {name: number_pseudonyms(name, trace[name]) for name in trace.tables}
    except TracekitError:
        return None


def test_names_that_are_no_unicode_are_refused(tmp_path: Path) -> None:
    data = edited(tmp_path, "CREATE TABLE scratch (hello TEXT)").read_bytes()
    path = tmp_path / "odd.sqlite"
    path.write_bytes(data.replace(b"scratch", b"scr\xe9tch").replace(b"hello", b"h\xe9llo"))
    with pytest.raises(
        CorruptTraceError, match=r"odd\.sqlite: .*the name of a table or column is not valid UTF-8\nHint: "
    ):
        tk.redact(path, tmp_path / "out.sqlite")


def test_a_name_that_is_no_unicode_can_be_written_to(tmp_path: Path) -> None:
    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    out = folder / "r\udce9sult.sqlite"
    assert tk.redact(FIXTURES / "empty.sqlite", out)["host name"] == 3
    assert [p.name for p in folder.iterdir()] == [out.name]


def test_a_target_that_exists_is_kept(planted: Path) -> None:
    out = planted.with_name("there.sqlite")
    out.write_text("precious")
    with pytest.raises(ExportError, match="the output already exists"):
        tk.redact(planted, out)
    with pytest.raises(ExportError, match="this file is being read, so it cannot be replaced"):
        tk.redact(planted, planted, overwrite=True)
    assert out.read_text() == "precious"


def test_a_disk_that_fills_up_is_the_fault_of_the_target(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy fits, what is made of it does not."""
    original = databases._open_writable_database

    @contextlib.contextmanager
    def small(path: Path) -> Iterator[sqlite3.Connection]:
        with original(path) as db:
            db.execute("PRAGMA max_page_count = 1")
            yield db

    monkeypatch.setattr(databases, "_open_writable_database", small)
    monkeypatch.setattr(redact.RedactedExport, "_redact_outputs", lambda self: self.db.execute(FILLED))
    with pytest.raises(ExportError, match=r"cannot be written: No space left on device\nHint: free space on the disk"):
        tk.redact(planted, planted.with_name("out.sqlite"))
    assert [p.name for p in planted.parent.iterdir()] == [planted.name]


@pytest.mark.slow
def test_a_uuid_is_replaced_by_the_same_pseudonym_everywhere(tmp_path: Path) -> None:
    ((uuid, bus),) = plain(
        FIXTURES / "nvtx_features.sqlite", "SELECT uuid, busLocation FROM TARGET_INFO_GPU WHERE id = 0"
    )
    path = edited(tmp_path, f"INSERT INTO StringIds VALUES (9001, 'on GPU-{uuid} at {bus}')", of="nvtx_features")
    copies = []
    for name, key in (
        ("a", b"0123456789abcdef"),
        ("b", b"0123456789abcdef"),
        ("c", b"another key 0123"),
        ("d", None),
        ("e", None),
    ):
        copies.append(tmp_path / f"{name}.sqlite")
        tk.redact(path, copies[-1], key=key)
    texts = [plain(c, "SELECT value FROM StringIds WHERE id = 9001")[0][0] for c in copies]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 4
    for copy, text in zip(copies, texts, strict=True):
        ((pseudonym, address),) = plain(copy, "SELECT uuid, busLocation FROM TARGET_INFO_GPU WHERE id = 0")
        assert text == f"on GPU-{pseudonym} at {address}"
        info = plain(copy, "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE nameEnum = 897")[0][0]
        assert pseudonym in info
        assert address in info
        assert uuid.encode() not in copy.read_bytes()


def test_environments_and_secrets_in_other_texts_are_overwritten(tmp_path: Path) -> None:
    texts = {
        "env HOME=/root, WANDB_KEY=k3y-0f-carol, USER=carol": "env xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "PATH=/bin\nUSER=dave": "xxxxxxxxxxxxxxxxxxx",
        "carol_run with k3y-0f-carol as Dave": "xxxxx_run with xxxxxxxxxxxx as xxxx",
        "push to https://al:pw@git.example/x": "push to https://xxxxx@xxx.xxxxxxx/x",
        "read /data/falcon/a.bin of 10.0.0.7": "read /data/xxxxxx/a.bin of xx.x.x.x",
    }
    rows = ", ".join(f"({i}, 9, 59, '{t}')" for i, t in enumerate(texts))
    path = edited(tmp_path, f"INSERT INTO NVTX_EVENTS (start, end, eventType, text) VALUES {rows}", of="nvtx_features")
    out, counts = redacted(path)
    assert dict(plain(out, "SELECT start, text FROM NVTX_EVENTS WHERE end = 9 ORDER BY start")) == dict(
        enumerate(texts.values())
    )
    assert [counts[k] for k in ("environment", "secret", "path", "network address")] == [13, 1, 1, 1]


def test_folders_of_the_installation_and_of_files_are_overwritten(tmp_path: Path) -> None:
    folder = "/cluster/falcon/nsight-systems/2025.3.1/target-linux-x64"
    path = edited(
        tmp_path,
        f"UPDATE TARGET_INFO_SYSTEM_ENV SET value = '{folder}' WHERE nameEnum = 170",
        "CREATE TABLE OSRT_FILE_ACCESS_DESCRIPTORS (id INTEGER, filePath TEXT)",
        "INSERT INTO OSRT_FILE_ACCESS_DESCRIPTORS VALUES (1, '/acme/falcon/data.bin'), (2, '/usr/lib/libc.so.6')",
        f"INSERT INTO StringIds VALUES (9001, 'loaded {folder}/libx.so')",
        of="nvtx_features",
    )
    out, counts = redacted(path)
    assert plain(out, "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE nameEnum = 170") == [
        ("/xxxxxxx/xxxxxx/nsight-systems/2025.3.1/target-linux-x64",)
    ]
    assert plain(out, "SELECT filePath FROM OSRT_FILE_ACCESS_DESCRIPTORS") == [
        ("/xxxx/xxxxxx/data.bin",),
        ("/usr/lib/libc.so.6",),
    ]
    assert "falcon" not in plain(out, "SELECT value FROM StringIds WHERE id = 9001")[0][0]
    assert counts["path"] == 3


MOMENTS = 11 if ALL else 5
MARKER = "m4rk3r-0f-a-s3cr3t"
KILLED = """
import sys, tracekit as tk
print("ready", flush=True)
tk.redact(sys.argv[1], sys.argv[2])
"""


def large(folder: Path, rows: int) -> Path:
    """An export of some size, with a secret in every string."""
    path = edited(folder, "CREATE TABLE big (id INTEGER PRIMARY KEY, note TEXT)", of="graph_node", name="large.sqlite")
    with contextlib.closing(sqlite3.connect(path)) as db:
        texts = (f"A={MARKER}\0PATH=/bin\0N={i:0200}" for i in range(rows))
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(texts, 100_000))
        db.commit()
    return path


def holding_the_marker(*folders: Path) -> list[str]:
    """Names of files below some folders that hold the secret."""
    files = (p for folder in folders for p in folder.rglob("*") if p.is_file())
    return [p.name for p in files if MARKER.encode() in p.read_bytes()]


@pytest.mark.slow
def test_no_unredacted_copy_stands_on_the_disk_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the copy is complete and nothing of it is redacted yet, and when all is done but the file is not written."""
    source, target, temporary = (tmp_path / n for n in ("source", "target", "temporary"))
    for folder in (source, target, temporary):
        folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("SQLITE_TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    path = large(source, 30_000)
    original = redact.RedactedExport.redact
    found: list[list[str]] = []

    def watched(self: redact.RedactedExport) -> None:
        assert self.db.execute("SELECT count(*) FROM StringIds WHERE id >= 100000").fetchone() == (30_000,)
        found.append(holding_the_marker(target, temporary))
        original(self)
        found.append(holding_the_marker(target, temporary))

    monkeypatch.setattr(redact.RedactedExport, "redact", watched)
    assert tk.redact(path, target / "out.sqlite")["environment"] >= 30_000
    assert found == [[], []]
    assert holding_the_marker(source) == [path.name]
    assert holding_the_marker(target, temporary) == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no signal ends a process at once")
def test_a_killed_process_leaves_nothing_unredacted(tmp_path: Path) -> None:
    source, target, temporary = (tmp_path / n for n in ("source", "target", "temporary"))
    for folder in (source, target, temporary):
        folder.mkdir()
    path = large(source, 20_000)
    environment = {**os.environ, "TMPDIR": str(temporary), "SQLITE_TMPDIR": str(temporary)}

    def run(moment: float | None) -> tuple[int, float]:
        """Redact in a process of its own, and kill it after some seconds."""
        command = [sys.executable, "-c", KILLED, path, target / "out.sqlite"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            began = time.monotonic()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60 if moment is None else moment)
            process.kill()
            return process.wait(), time.monotonic() - began

    status, whole = run(None)
    assert status == 0
    assert holding_the_marker(target, temporary) == []
    (target / "out.sqlite").unlink()
    statuses = []
    for nth in range(1, MOMENTS):
        status, seconds = run(whole * nth / MOMENTS)
        statuses.append(status)
        whole = min(whole, seconds) if status == 0 else whole  # the first run was slower, as other programs ran
        assert holding_the_marker(target, temporary) == [], f"killed at {nth} of {MOMENTS}"
        (target / "out.sqlite").unlink(missing_ok=True)
    assert statuses.count(-signal.SIGKILL) > 2


@pytest.mark.many(1)
@pytest.mark.parametrize("mode", ["wal", "delete"])
@pytest.mark.parametrize("vacuum", [0, 1, 2])
def test_settings_of_the_file_are_kept(mode: str, vacuum: int, tmp_path: Path) -> None:
    path = tmp_path / "settings.sqlite"
    with contextlib.closing(sqlite3.connect(FIXTURES / "graph_node.sqlite")) as original:
        original.execute("VACUUM INTO ?", (str(path),))
    with contextlib.closing(sqlite3.connect(path)) as db:
        for setting in (f"auto_vacuum = {vacuum}", "page_size = 8192", "user_version = 77", "application_id = 99"):
            db.execute(f"PRAGMA {setting}")
        db.execute("VACUUM")
        assert db.execute(f"PRAGMA journal_mode = {mode}").fetchone() == (mode,)
    assert path.read_bytes()[18:20] == (b"\2\2" if mode == "wal" else b"\1\1")
    out, _ = redacted(path)
    for pragma in ("user_version", "schema_version", "page_size", "encoding", "application_id", "auto_vacuum"):
        assert plain(out, f"PRAGMA {pragma}") == plain(path, f"PRAGMA {pragma}")
    assert plain(out, "PRAGMA auto_vacuum") == [(vacuum,)]
    assert tables(out) == tables(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["redacted.sqlite", "settings.sqlite"]


COSTLY = {
    "default": "ALTER TABLE StringIds ADD COLUMN more TEXT DEFAULT '{}'".format("x" * 1000),
    "function": "CREATE TABLE g (t TEXT, u AS (hex(zeroblob(1000000))) STORED)",
    "chain": "CREATE TABLE g (t TEXT, u AS (t||t||t||t||t||t||t||t), v AS (u||u||u||u||u||u||u||u))",
    "long": "CREATE TABLE g (t TEXT, {})".format(", ".join(f"u{i} AS ({'+'.join('t' * 900)})" for i in range(5))),
    "json": "CREATE TABLE g (t TEXT, u AS (t -> '$'))",
    "index": "CREATE INDEX i ON StringIds (value||value)",
    "partial": "CREATE INDEX i ON StringIds (id) WHERE value||value IS NOT NULL",
}


@pytest.mark.parametrize("statement", COSTLY.values(), ids=COSTLY.keys())
def test_sql_that_could_cost_anything_is_refused(statement: str, tmp_path: Path) -> None:
    path = edited(tmp_path, statement)
    with contextlib.closing(sqlite3.connect(path)) as db:
        if "TABLE g" in statement:
            db.execute("""INSERT INTO g (t) VALUES ('"/home/alice/a"')""")
            db.commit()
    with pytest.raises(TracekitError) as caught:
        tk.redact(path, tmp_path / "out.sqlite")
    assert str(caught.value).startswith(f"{path}: ")
    assert caught.value.hint
    assert [p.name for p in tmp_path.iterdir()] == ["edited.sqlite"]


def test_short_expressions_may_stay(tmp_path: Path) -> None:
    path = edited(
        tmp_path,
        "CREATE TABLE g (t TEXT, n INTEGER, twice AS (2 * n) STORED, CHECK (length(t) > 0))",
        "INSERT INTO g (t, n) VALUES ('/home/alice', 4)",
        "CREATE INDEX i ON g (n + 1)",
        "CREATE INDEX j ON g (t) WHERE n > 3",
    )
    out, _ = redacted(path)
    assert plain(out, "SELECT * FROM g") == [("/home/xxxxx", 4, 8)]
    assert plain(out, "PRAGMA integrity_check") == [("ok",)]


def test_more_values_than_the_size_allows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = ", ".join(f"c{i} TEXT" for i in range(400))
    path = edited(
        tmp_path, f"CREATE TABLE wide (a INTEGER, {columns})", "INSERT INTO wide (a) SELECT id FROM StringIds"
    )
    monkeypatch.setattr(databases, "MIN_VALUES", 1000)
    monkeypatch.setattr(databases, "VALUES_PER_BYTE", 0)
    with pytest.raises(
        CorruptTraceError,
        match=r"string columns have more than \d+ values in total, which .*\nHint: export it again",
    ):
        tk.redact(path, tmp_path / "out.sqlite")


def test_more_text_than_the_size_allows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = edited(tmp_path)
    monkeypatch.setattr(databases, "MIN_STRING_BYTES", -databases.STRING_BYTES_PER_BYTE * path.stat().st_size)
    with pytest.raises(
        CorruptTraceError,
        match=r"its strings have more than 0 bytes in total, which is too many for a file of \d+ bytes\n",
    ):
        tk.redact(path, tmp_path / "out.sqlite")


def test_a_value_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = edited(tmp_path, "INSERT INTO StringIds VALUES (9001, printf('%.*c', 2000000, 'x'))")
    monkeypatch.setattr(databases, "MAX_VALUE", 1_000_000)
    with pytest.raises(CorruptTraceError, match=r"cannot be redacted: .*\nHint: export it again"):
        tk.redact(path, tmp_path / "out.sqlite")


LIMITED = """
import resource, sys, tracekit as tk
tk.unredacted("fixtures/empty.sqlite")
used = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
resource.setrlimit(resource.RLIMIT_CPU, (used + 20, used + 20))
try:
    tk.redact(sys.argv[1], sys.argv[2])
except tk.TracekitError as e:
    print(type(e).__name__, e)
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="no limit of processor time")
def test_pages_that_lead_to_the_same_page_again_and_again_are_refused(tmp_path: Path) -> None:
    """Ten pages whose rows would take years to go through: every pointer of a page leads to the page below."""
    path = tmp_path / "loop.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as db:
        for statement in (
            "PRAGMA page_size = 4096",
            "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)",
            "CREATE TABLE ThreadNames (nameId INTEGER)",
            "INSERT INTO StringIds VALUES (1, 'a')",
        ):
            db.execute(statement)
        db.commit()
    data = bytearray(path.read_bytes())
    (root,) = (2,)
    leaf = bytes(data[(root - 1) * 4096 : root * 4096])
    pages = len(data) // 4096
    levels = 6

    def interior(child: int) -> bytes:
        cells = 500
        page = bytearray(4096)
        place = 4096
        pointers = b""
        for key in range(cells):
            place -= 6
            page[place : place + 6] = struct.pack(">I", child) + bytes((0x80 | key >> 7, key & 0x7F))
            pointers += struct.pack(">H", place)
        page[:12] = struct.pack(">BHHHBI", 5, 0, cells, place, 0, child)
        page[12 : 12 + len(pointers)] = pointers
        return bytes(page)

    for level in range(levels):
        data += interior(pages + level + 2) if level < levels - 1 else leaf
    data[(root - 1) * 4096 : root * 4096] = interior(pages + 1)
    struct.pack_into(">I", data, 28, pages + levels)
    path.write_bytes(data)
    command = [sys.executable, "-c", LIMITED, path, tmp_path / "out.sqlite"]
    done = fork_server.run(command, cwd=FIXTURES.parent, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        f"CorruptTraceError {path}: the export cannot be redacted: SQLite reports that its pages or rows are damaged"
    )
    assert [p.name for p in tmp_path.iterdir()] == ["loop.sqlite"]


def test_a_file_that_changes_meanwhile_gives_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = edited(tmp_path)
    opened = databases._open_writable_database

    def changing(uri: str) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        with path.open("ab") as f:
            f.write(bytes(4096))
        return opened(uri)

    monkeypatch.setattr(databases, "_open_writable_database", changing)
    with pytest.raises(TracekitError, match=r"changed while it was open: it had .* bytes, but now .*\nHint: wait"):
        tk.redact(path, tmp_path / "out.sqlite")
    assert [p.name for p in tmp_path.iterdir()] == ["edited.sqlite"]


@pytest.mark.slow
def test_what_remains_is_counted(planted: Path) -> None:
    before = {p.name: p.stat().st_mtime_ns for p in planted.parent.iterdir()}
    with untouched(planted):
        counts = tk.unredacted(planted)
    out, replaced = redacted(planted)
    assert counts == replaced
    assert not any(tk.unredacted(out).values())
    assert before.keys() == {p.name for p in planted.parent.iterdir()} - {out.name}


def test_columns_called_like_the_row_number_are_overwritten_all_the_same(tmp_path: Path) -> None:
    path = edited(
        tmp_path,
        "CREATE TABLE named (rowid TEXT, _rowid_ TEXT, oid TEXT)",
        "INSERT INTO named VALUES ('/home/alice', 'b', x'2f686f6d652f616c6963652f')",
        "CREATE TABLE half (rowid TEXT, note TEXT)",
        "INSERT INTO half VALUES ('a', '/home/alice')",
    )
    out, _ = redacted(path)
    assert plain(out, "SELECT * FROM named") == [("/home/xxxxx", "b", b"/home/xxxxx/")]
    assert plain(out, "SELECT * FROM half") == [("a", "/home/xxxxx")]
