"""Which fields of a report hold what is private, and what becomes of them.

Each function returns an edit: what is to become of the bytes of a message. Fields are numbered as in the note on the
format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.rewriting import edited, encoded, parts, within
from tracekit.readers.common.protobuf.wire import DELIMITED, VARINT, Message, signed, varint
from tracekit.readers.common.redaction import (
    ADDRESS,
    COMMAND,
    ENVIRONMENT,
    HOST,
    Redaction,
    is_local,
    is_text,
    without_folder,
)
from tracekit.readers.nsys_rep.container import CLOCKS, FACTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.readers.common.protobuf.rewriting import Edit, Part

OPTIONS, AGENTS = "Analysis Options Data", "Agent activity list"
PROCESS = 113
PROCESS_MARK = encoded(PROCESS << 3 | DELIMITED)

_TITLE, _NAME, _PATH_FOLDER_ARGUMENTS, _VARIABLES = 5, 6, (7, 8, 9), 13
_COMMAND_ARGUMENT_FOLDER, _VARIABLE = (10, 11, 12), 30
_ENVIRONMENT, _HOST, _NETWORK, _FOLDERS = 610, 619, 910, (170, 173)
_NETWORK_ADDRESS = 6


def sections(redaction: Redaction) -> dict[str, Edit]:
    """Return the edits of the sections that hold what is private."""
    command, host, device = _taken(redaction, COMMAND), _taken(redaction, HOST), _device(redaction)
    variable, clock = _variable(redaction), redaction.identifier
    launched = within({1: command, 2: command, 3: command, 5: within({1: variable})})
    asked = within({1: within({9: device, 10: host}), 10: command, 11: command, 61: command})
    return {
        OPTIONS: within({1: device, 9: host, 26: _launch(redaction)}),
        AGENTS: within({1: within({50: asked, 52: within({1: launched})})}),
        FACTS: within({5: host, 23: redaction.folders, 24: host, 25: command, 40: host}),
        CLOCKS: within(
            {
                1: within({1: within({1: clock, 3: _of_message({1: clock})})}),
                2: within({1: within({1: clock, 2: clock})}),
            }
        ),
    }


def trailer(redaction: Redaction) -> Edit:
    """Return the edit of a message after the strings, such as what is known of GPUs: of some the UUID is 16 bytes."""
    uuid = within({5: lambda value: value if is_text(value) else redaction.identifier(value)})
    return within({1: _of_message({2: _of_message({7: uuid, 9: uuid})})})


def _of_message(edits: dict[int, Edit]) -> Edit:
    """Return the edit of bytes that may be a message; what is none stays."""
    edit = within(edits)

    def edited_if_message(data: bytes) -> bytes:
        try:
            return edit(data)
        except Damage:
            return data

    return edited_if_message


def _taken(redaction: Redaction, kind: str) -> Edit:
    return lambda value: redaction.take(kind, value)


def _device(redaction: Redaction) -> Edit:
    return lambda value: value if is_local(value) else redaction.take(HOST, value)


def _variable(redaction: Redaction) -> Edit:
    """Return the edit of a variable of an environment: name and value."""

    def edit(data: bytes) -> bytes:
        name, value = (bytes(Message(memoryview(data)).part(n)) for n in (1, 2))
        if name or value:
            redaction.take(ENVIRONMENT, name + b"=" + value + b"\0")
        return within({1: _emptied, 2: _emptied})(data)

    return edit


def _launch(redaction: Redaction) -> Edit:
    """Return the edit of how a process was to be launched; whatever else of it is text goes with the command line."""
    variable = _variable(redaction)

    def edit(part: Part, value: bytes) -> bytes:
        if part.kind != DELIMITED:
            return value
        if part.number == _VARIABLE:
            return variable(value)
        private = part.number in _COMMAND_ARGUMENT_FOLDER or _is_plain(value)
        return redaction.take(COMMAND, value) if private else value

    return lambda data: edited(data, edit)


def target(redaction: Redaction) -> Edit:
    """Return the edit of a machine's description."""
    network = within({1: lambda data: edited(data, _without_address(redaction))})
    edits: dict[int, Edit] = {
        _ENVIRONMENT: _taken(redaction, ENVIRONMENT),
        _HOST: _taken(redaction, HOST),
        **dict.fromkeys(_FOLDERS, redaction.folders),
        _NETWORK: lambda value: value if is_text(value) else network(value),
    }

    def edit(data: bytes) -> bytes:
        chosen = edits.get(Message(memoryview(data)).number(1) or 0)
        return data if chosen is None else within({2: chosen})(data)

    return within({1: _device(redaction), 2: within({1: edit})})


def _without_address(redaction: Redaction) -> Callable[[Part, bytes], bytes]:
    """Return the edit of a network device: its address becomes 0."""

    def edit(part: Part, value: bytes) -> bytes:
        if part.number != _NETWORK_ADDRESS or not value.strip(b"\0"):
            return value
        redaction.counts[ADDRESS] += 1
        return b"" if part.kind == DELIMITED else b"\0" if part.kind == VARINT else bytes(len(value))

    return edit


def process(redaction: Redaction) -> Edit:
    """Return the edit of a process: its name stays, without folder and arguments."""

    def edit(data: bytes) -> bytes:
        kept = _kept_of_process(data, list(parts(data)))

        def change(part: Part, value: bytes) -> bytes:
            if part.start not in kept:
                return value
            redaction.take(COMMAND, value)
            return kept[part.start]

        return edited(data, change)

    return edit


class Processes(NamedTuple):
    """What an event tells of processes: which strings are their environments, and whether they lose anything."""

    environments: list[int]
    change: bool

    @classmethod
    def of(cls, event: bytes) -> Processes:
        """Look through an event."""
        environments: list[int] = []
        change = False
        for outer in parts(event):
            if outer.number == PROCESS and outer.kind == DELIMITED:
                data = event[outer.start : outer.end]
                fields = list(parts(data))
                numbers = [p for p in fields if p.number == _VARIABLES and p.kind == VARINT]
                environments += [signed(varint(memoryview(data), p.start)[0]) for p in numbers]
                change = change or bool(_kept_of_process(data, fields))
        return cls(environments, change)


def _kept_of_process(data: bytes, fields: list[Part]) -> dict[int, bytes]:
    """Return what is to become of the texts of a process that do not stay as they are, by where they begin."""
    texts = [(p.start, p.number, data[p.start : p.end]) for p in fields if p.kind == DELIMITED]
    named = next((value for _, number, value in texts if number == _NAME), b"")
    kept: dict[int, bytes] = {}
    for start, number, value in texts:
        if number == _TITLE and value != named:
            kept[start] = b"" if named else without_folder(value)
        elif number in _PATH_FOLDER_ARGUMENTS:
            kept[start] = b""
        if kept.get(start) == value:
            del kept[start]
    return kept


def _emptied(_: bytes) -> bytes:
    return b""


def _is_plain(value: bytes) -> bool:
    """Whether bytes are a text and cannot be a message."""
    if not value or not is_text(value):
        return False
    try:
        return not list(parts(value))
    except Damage:
        return True
