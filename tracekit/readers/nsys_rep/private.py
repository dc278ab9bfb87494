"""Which fields of a report hold what is private, and what becomes of them.

Each function returns an edit: what is to become of the bytes of a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.rewriting import edit_message, encode_varint, field_spans, message_edit
from tracekit.readers.common.protobuf.wire import DELIMITED, VARINT, Message, read_varint, to_signed
from tracekit.readers.common.redaction import (
    ADDRESS,
    COMMAND,
    ENVIRONMENT,
    HOST,
    Redaction,
    is_local,
    is_text,
    program_name,
)
from tracekit.readers.nsys_rep.container import CLOCKS, FACTS
from tracekit.readers.nsys_rep.fields import fields_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.readers.common.protobuf.rewriting import Edit, FieldSpan

OPTIONS, AGENTS = "Analysis Options Data", "Agent activity list"
PROCESS_MARK = encode_varint(fields_of("Event").process << 3 | DELIMITED)
"""The bytes before the length of a process in an event."""

_PROCESS, _LAUNCH, _VARIABLE = fields_of("Process"), fields_of("LaunchOptions"), fields_of("Variable")
_ENVIRONMENT, _HOST, _NETWORK, _FOLDERS = 610, 619, 910, (170, 173)


def sections(redaction: Redaction) -> dict[str, Edit]:
    """Return the edits of the sections that hold what is private."""
    command, host, device = _taken(redaction, COMMAND), _taken(redaction, HOST), _device(redaction)
    variable, clock = _variable(redaction), redaction.identifier
    environment = edit_fields("Environment", variables=variable)
    process = edit_fields(
        "LaunchedProcess", command=command, arguments=command, folder=command, environment=environment
    )
    agent_target = edit_fields("AgentTarget", device_name=device, host_name=host)
    agent = edit_fields(
        "AgentActivity",
        request=edit_fields("AgentRequest", target=agent_target, command_line=command, folder=command, output=command),
        launched=edit_fields("LaunchedProcesses", processes=process),
    )
    related = edit_fields_if_message("RelatedClock", uuid=clock)
    conversion = edit_fields("Conversion", from_uuid=clock, to_uuid=clock)
    return {
        OPTIONS: edit_fields("AnalysisOptions", device_name=device, host_name=host, launch=_launch(redaction)),
        AGENTS: edit_fields("AgentActivities", activities=agent),
        FACTS: edit_fields(
            "UiData",
            **dict.fromkeys(("host_name", "second_host_name", "third_host_name"), host),
            installation_folder=redaction.folders,
            command_line=command,
        ),
        CLOCKS: edit_fields(
            "TimeConversions",
            clocks=edit_fields("Clocks", clocks=edit_fields("Clock", uuid=clock, related=related)),
            conversions=edit_fields("Conversions", conversions=conversion),
        ),
    }


def trailer(redaction: Redaction) -> Edit:
    """Return the edit of a message after the strings, such as what is known of GPUs: of some the UUID is 16 bytes."""

    def uuid(value: bytes) -> bytes:
        return value if is_text(value) else redaction.identifier(value)

    gpu, cuda_device = edit_fields("Gpu", uuid=uuid), edit_fields("CudaDevice", uuid=uuid)
    devices = edit_fields_if_message("Devices", gpus=gpu, cuda_devices=cuda_device)
    return edit_fields("Trailer", targets=edit_fields_if_message("TargetDevices", devices=devices))


def edit_fields(message: str, **edits: Edit) -> Edit:
    """Return the edit of a message that edits some of its fields, by name."""
    fields = fields_of(message)
    return message_edit({getattr(fields, name): edit for name, edit in edits.items()})


def edit_fields_if_message(message: str, **edits: Edit) -> Edit:
    """Return the edit of bytes that may be a message; bytes that are none stay as they are."""
    edit = edit_fields(message, **edits)

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
        name, value = (bytes(Message(memoryview(data)).part(n)) for n in (_VARIABLE.name, _VARIABLE.value))
        if name or value:
            redaction.take(ENVIRONMENT, name + b"=" + value + b"\0")
        return edit_fields("Variable", name=_emptied, value=_emptied)(data)

    return edit


def _launch(redaction: Redaction) -> Edit:
    """Return the edit of how a process was to be launched; whatever else of it is text goes with the command line."""
    variable = _variable(redaction)

    def edit(part: FieldSpan, value: bytes) -> bytes:
        if part.kind != DELIMITED:
            return value
        if part.number == _LAUNCH.variables:
            return variable(value)
        private = part.number in (_LAUNCH.command, _LAUNCH.arguments, _LAUNCH.folder) or _is_plain(value)
        return redaction.take(COMMAND, value) if private else value

    return lambda data: edit_message(data, edit)


def target(redaction: Redaction) -> Edit:
    """Return the edit of a machine's description."""
    network = edit_fields("NetworkDevices", devices=lambda data: edit_message(data, _without_address(redaction)))
    field = fields_of("Property")
    edits: dict[int, Edit] = {
        _ENVIRONMENT: _taken(redaction, ENVIRONMENT),
        _HOST: _taken(redaction, HOST),
        **dict.fromkeys(_FOLDERS, redaction.folders),
        _NETWORK: lambda value: value if is_text(value) else network(value),
    }

    def edit(data: bytes) -> bytes:
        chosen = edits.get(Message(memoryview(data)).number(field.id) or 0)
        return data if chosen is None else edit_fields("Property", value=chosen)(data)

    properties = edit_fields("Properties", properties=edit)
    return edit_fields("Target", device_name=_device(redaction), properties=properties)


def _without_address(redaction: Redaction) -> Callable[[FieldSpan, bytes], bytes]:
    """Return the edit of a network device: its address becomes 0."""

    def edit(part: FieldSpan, value: bytes) -> bytes:
        if part.number != fields_of("NetworkDevice").address or not value.strip(b"\0"):
            return value
        redaction.counts[ADDRESS] += 1
        return b"" if part.kind == DELIMITED else b"\0" if part.kind == VARINT else bytes(len(value))

    return edit


def process(redaction: Redaction) -> Edit:
    """Return the edit of a process: its name stays, without folder and arguments."""

    def edit(data: bytes) -> bytes:
        kept = _kept_of_process(data, list(field_spans(data)))

        def change(part: FieldSpan, value: bytes) -> bytes:
            if part.start not in kept:
                return value
            redaction.take(COMMAND, value)
            return kept[part.start]

        return edit_message(data, change)

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
        for outer in field_spans(event):
            if outer.number == fields_of("Event").process and outer.kind == DELIMITED:
                data = event[outer.start : outer.end]
                fields = list(field_spans(data))
                numbers = [p for p in fields if p.number == _PROCESS.environment_text_id and p.kind == VARINT]
                environments += [to_signed(read_varint(memoryview(data), p.start)[0]) for p in numbers]
                change = change or bool(_kept_of_process(data, fields))
        return cls(environments, change)


def _kept_of_process(data: bytes, fields: list[FieldSpan]) -> dict[int, bytes]:
    """Return what is to become of the texts of a process that do not stay as they are, by where they begin."""
    texts = [(p.start, p.number, data[p.start : p.end]) for p in fields if p.kind == DELIMITED]
    named = next((value for _, number, value in texts if number == _PROCESS.name), b"")
    kept: dict[int, bytes] = {}
    for start, number, value in texts:
        if number == _PROCESS.command and value != named:
            kept[start] = b"" if named else program_name(value)
        elif number in (_PROCESS.path, _PROCESS.folder, _PROCESS.arguments):
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
        return not list(field_spans(value))
    except Damage:
        return True
