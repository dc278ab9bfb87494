"""What a capture of nsys holds of people and machines, read from where nsys puts it: nothing of what redacts is used.

Only kinds and numbers may be shown of it, never a value. A value counts as a secret if it says something: of an
environment, one of 8 bytes or more that is no number, no version, no name of a program (one or two words without a long
number) and no path of folders that every system has; of a command line, an argument with a path or a space. Names of
files and programs stay in a redacted capture, so they are none.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.builders.nsys_rep import take_apart
from tracekit.readers.common.protobuf.decoding import Message
from tracekit.readers.nsys_rep.container import Container
from tracekit.readers.redaction.vocabulary import COMMON, TECHNICAL, is_known_folder
from tracekit.registry.source import Source

Secrets = dict[str, set[bytes]]
SHORTEST_VALUE, SHORTEST_NAME = 8, 4
SOFTWARE = re.compile(
    rb"(?:LS_COLORS|LESS|TERM|COLORTERM|XDG_CURRENT|XDG_SESSION|DESKTOP_SESSION|GDMSESSION|GTK_|QT_|GNOME_|GJS_|XMODIFIERS"
    rb"|NVIDIA_|NV_|NCCL_|DEBUGINFOD|TZ|LISTEN_|DEBIAN|EDITOR|PAGER|CC|CXX|FC|F77|F90|PYTORCH_|TORCH_|OMP_|KMP_|MKL_|TF_|XLA_"
    rb"|JAX_|LANG|LC_|BASH_FUNC|which_declare)"
)
"""Beginnings of the names of variables that say which software runs and how."""
UUID = re.compile(rb"(?<![0-9a-fA-F])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![0-9a-fA-F])")
BUS = re.compile(rb"(?<![0-9a-fA-F:])[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7](?![0-9a-fA-F])")
MAC = re.compile(rb"(?<![0-9a-fA-F:])[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5}(?![0-9a-fA-F:])")
HOME = re.compile(rb"/home/([^/\0\s:;,\"'<>|()\[\]{}=&?*$!`\x7f]+)")
PSEUDONYM = (b"00000000-0000-8", b"ffff:")
USERS, HOSTS = (b"USER", b"LOGNAME", b"USERNAME", b"SUDO_USER"), (b"HOSTNAME", b"COMPUTERNAME", b"SLURMD_NODENAME")


@functools.cache
def secrets_of(path: Path) -> Secrets:
    """Collect environments, users, hosts, homes, command lines, ids and addresses of a capture, by kind."""
    found: Secrets = defaultdict(set)
    for kind, value in of_export(path) if path.suffix == ".sqlite" else of_report(path):
        add(found, kind, value)
    for text in texts(path):
        found["uuid"].update(m[0] for m in UUID.finditer(text) if m[0].strip(b"0-"))
        found["bus"].update(m[0] for m in BUS.finditer(text))
        found["mac"].update(m[0] for m in MAC.finditer(text) if m[0].strip(b"0:"))
        found["home"].update(m[0] for m in HOME.finditer(text) if m[1].lower() not in COMMON)
    return found


def add(found: Secrets, kind: str, value: bytes) -> None:
    """Add a value, if it says anything."""
    if kind == "variable":
        name, _, value = value.partition(b"=")
        value = value.strip(b'"')
        kind = "user" if name in USERS else "host" if name in HOSTS else "environment"
        if SOFTWARE.match(name):
            return
    if kind in ("user", "host"):
        words = {w for w in (value, value.partition(b".")[0]) if len(w) >= SHORTEST_NAME and re.search(rb"[A-Za-z]", w)}
        found[kind].update(w for w in words if w.lower() not in COMMON | TECHNICAL)
    elif (
        len(value) >= SHORTEST_VALUE and not says_nothing(value) and (kind != "command" or re.search(rb"[/\\ ]", value))
    ):
        found[kind].add(value)


def says_nothing(value: bytes) -> bool:
    """Whether a value is a number, a version, the name of a program, or a path of folders that every system has."""
    parts = [p for p in re.split(rb"[/:;,\s]+", value) if p]
    if b"/" in value:
        return all(is_known_folder(p) or re.fullmatch(rb"[a-z0-9]{1,12}", p) for p in parts) or value.startswith(
            (b"/usr/", b"/lib", b"/etc/", b"/proc/", b"/sys/", b"/dev/", b"/snap/", b"/run/", b"/bin", b"/sbin")
        )
    words = re.findall(rb"[A-Za-z]+", value)
    return (len(words) <= 2 and not re.search(rb"\d\w*[A-Za-z]\w*\d|[A-Za-z]\w*\d{4}", value)) or all(
        w.lower() in TECHNICAL | COMMON for w in words
    )


def of_export(path: Path) -> Iterator[tuple[str, bytes]]:
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)) as db:
        db.text_factory = bytes
        columns = {
            (table.decode(), column.decode())
            for table, column in db.execute("SELECT m.name, c.name FROM sqlite_schema m, pragma_table_info(m.name) c")
        }
        for (text,) in db.execute("SELECT value FROM StringIds WHERE instr(value, char(0)) OR instr(value, 'PATH=')"):
            yield from environment(text)
        for table in ("META_DATA_CAPTURE", "META_DATA_EXPORT", "EXPORT_META_DATA"):
            rows = db.execute(f"SELECT name, value FROM {table}") if (table, "name") in columns else ()
            yield from ((kind, value) for name, value in rows if value and (kind := kind_of_setting(name)))
        yield from of_machine(db, columns)


def of_machine(db: sqlite3.Connection, columns: set[tuple[str, str]]) -> Iterator[tuple[str, bytes]]:
    if ("TARGET_INFO_SYSTEM_ENV", "value") in columns:
        for (value,) in db.execute("SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE nameEnum = 610 AND value <> ''"):
            yield from environment(value)
        for (value,) in db.execute("SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE nameEnum = 619 AND value <> ''"):
            yield "host", value
    if ("TARGET_INFO_NIC_INFO", "GUID") in columns:
        for (guid,) in db.execute("SELECT GUID FROM TARGET_INFO_NIC_INFO WHERE GUID <> 0"):
            yield "guid", str(guid).encode()


def kind_of_setting(name: bytes) -> str | None:
    if name.endswith(b"ENVIRONMENT_VARIABLE"):
        return "variable"
    if name == b"EXPORT_USER" or name.endswith(b":USER_NAME"):
        return "user"
    if name in (b"EXPORT_HOST", b"DEVICE_DISPLAY_NAME"):
        return "host"
    command = re.search(rb":(?:COMMAND|ARGUMENT_\d+|WORKING_DIR)$|^EXPORT_(?:\w+_)?PATH_ABS$", name)
    return "command" if command else None


def of_report(path: Path) -> Iterator[tuple[str, bytes]]:
    opened, apart = Container(Source(path)), take_apart(path)
    facts, options = (Message(opened.read_section(n)) for n in ("UI Data", "Analysis Options Data"))
    yield from (("host", bytes(facts.bytes_value(n))) for n in (5, 24, 40))
    yield "host", bytes(options.bytes_value(9))
    yield "command", bytes(facts.bytes_value(25))
    launch = options.message(26)
    yield from (("variable", bytes(m.bytes_value(1)) + b"=" + bytes(m.bytes_value(2))) for m in launch.messages(30))
    yield from (("command", bytes(p)) for n in (10, 11, 12) for p in launch.bytes_values(n))
    for machine in Message(memoryview(apart.header)).messages(1):
        for fact in machine.message(2).messages(1):
            if fact.int_value(1) == 610:
                yield from environment(bytes(fact.bytes_value(2)))
            elif fact.int_value(1) == 619:
                yield "host", bytes(fact.bytes_value(2))
    for block in apart.strings:
        for text in Message(memoryview(block)).bytes_values(1):
            if b"\0" in bytes(text) or b"PATH=" in bytes(text):
                yield from environment(bytes(text))


def environment(text: bytes) -> Iterator[tuple[str, bytes]]:
    """Take an environment apart."""
    separator = b"\0" if b"\0" in text else b"\n" if b"\n" in text.strip() else b";"
    parts = text.split(separator)
    if sum(re.match(rb"[A-Za-z_]\w*=", p) is not None for p in parts) * 2 > len(parts):
        yield from (("variable", p) for p in parts if re.match(rb"[A-Za-z_]\w*=", p))


def texts(path: Path) -> Iterator[bytes]:
    """Every text and blob of an export; of a report, every section and every block unpacked."""
    if path.suffix != ".sqlite":
        opened, apart = Container(Source(path)), take_apart(path)
        yield from (
            bytes(d) for n, d in opened.sections.items() if n not in ("Raw Sampling Data", "Sampling Data Offsets")
        )
        yield from (apart.header, apart.stream or b"", *apart.blocks, *apart.strings, *apart.rest)
        return
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)) as db:
        db.text_factory = bytes
        for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND rootpage > 0").fetchall():
            for row in db.execute(f'SELECT * FROM "{name.decode()}"'):
                yield b"\0".join(v if isinstance(v, bytes) else str(v).encode() for v in row if v is not None)


def left(secrets: Secrets, data: bytes) -> dict[str, int]:
    """How many of the secrets of each kind stand in data, alone or as parts of words."""
    found: dict[str, int] = {}
    low = data.lower()
    for kind, values in secrets.items():
        number = 0
        for value in values:
            if kind in ("user", "host"):
                number += re.search(rb"(?<![a-z0-9])" + re.escape(value.lower()) + rb"(?![a-z0-9])", low) is not None
            else:
                edges = rb"(?<![A-Za-z0-9])" + re.escape(value) + rb"(?![A-Za-z0-9])"
                number += value in data and re.search(edges, data) is not None
        if number:
            found[kind] = number
    return found
