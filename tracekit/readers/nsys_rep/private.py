"""Which fields of a report hold what is private, and how they are emptied.

Each function returns an edit: what is to become of the bytes of a message. Fields are numbered as in the note on the
format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.rewriting import edited, encoded, parts, within
from tracekit.readers.common.protobuf.wire import DELIMITED, VARINT, Message
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
from tracekit.readers.nsys_rep.container import FACTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.readers.common.protobuf.rewriting import Edit, Part

OPTIONS, AGENTS = "Analysis Options Data", "Agent activity list"
PROCESS = 113
PROCESS_MARK = encoded(PROCESS << 3 | DELIMITED)

_TITLE, _NAME, _PATH_FOLDER_ARGUMENTS, _VARIABLES = 5, 6, (7, 8, 9), 13
_COMMAND_ARGUMENT_FOLDER, _VARIABLE = (10, 11, 12), 30
_ENVIRONMENT, _HOST, _NETWORK = 610, 619, 910
_NETWORK_ADDRESS = 6


def sections(redaction: Redaction) -> dict[str, Edit]:
    """Return the edits of the sections that hold what is private."""
    command, host, device = _taken(redaction, COMMAND), _taken(redaction, HOST), _device(redaction)
    variable = _variable(redaction)
    launched = within({1: command, 2: command, 3: command, 5: within({1: variable})})
    asked = within({1: within({9: device, 10: host}), 10: command, 11: command, 61: command})
    return {
        OPTIONS: within({1: device, 9: host, 26: _launch(redaction)}),
        AGENTS: within({1: within({50: asked, 52: within({1: launched})})}),
        FACTS: within({5: host, 24: host, 25: command, 40: host}),
    }


def _taken(redaction: Redaction, kind: str) -> Edit:
    return lambda value: redaction.take(kind, value)


def _device(redaction: Redaction) -> Edit:
    return lambda value: value if is_local(value) else redaction.take(HOST, value)


def _variable(redaction: Redaction) -> Edit:
    """Return the edit of a variable of an environment: name and value."""

    def edit(data: bytes) -> bytes:
        name, value = (bytes(Message(memoryview(data)).part(n)) for n in (1, 2))
        if name or value:
            redaction.take(ENVIRONMENT, name + b"=" + value)
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
        named = Message(memoryview(data)).part(_NAME)

        def change(part: Part, value: bytes) -> bytes:
            if part.kind != DELIMITED or part.number not in (_TITLE, *_PATH_FOLDER_ARGUMENTS):
                return value
            kept = value if value == named else b"" if named else without_folder(value)
            if part.number == _TITLE:
                return value if kept == value else redaction.take(COMMAND, value) + kept
            return redaction.take(COMMAND, value)

        return edited(data, change)

    return edit


def environments(event: bytes) -> list[int]:
    """Return which strings are the environments of the processes that an event tells of."""
    processes = Message(memoryview(event)).messages(PROCESS)
    return [number for process in processes for number in process.numbers(_VARIABLES)]


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
