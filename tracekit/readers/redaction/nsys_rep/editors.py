"""Redact the fields of a report that hold private values.

An editor is a function that takes the bytes of a field or message and returns the redacted bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import (
    DELIMITED,
    VARINT,
    Message,
    convert_to_signed,
    encode_varint,
    read_varint,
)
from tracekit.readers.nsys_rep.container import CLOCKS, OPTIONS, UI_DATA
from tracekit.readers.nsys_rep.layout import load_fields
from tracekit.readers.redaction.matcher import is_text
from tracekit.readers.redaction.nsys_rep.messages import create_message_editor, edit_message, iterate_field_spans
from tracekit.readers.redaction.patterns import ADDRESS, COMMAND, ENVIRONMENT, HOST
from tracekit.readers.redaction.state import (
    FOLDER_PROPERTIES,
    NETWORK_PROPERTY,
    PRIVATE_PROPERTIES,
    extract_program_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.readers.redaction.nsys_rep.messages import FieldEdit, FieldSpan
    from tracekit.readers.redaction.state import Redaction

AGENTS = "Agent activity list"
PROCESS_KEY = encode_varint(load_fields("Event").process << 3 | DELIMITED)
"""Encoded key of the field of an event that holds a process. In the event, the length of the field follows it."""

_PROCESS, _LAUNCH, _VARIABLE = load_fields("Process"), load_fields("LaunchOptions"), load_fields("Variable")


def create_section_editors(redaction: Redaction) -> dict[str, FieldEdit]:
    """Return the functions that redact the sections with private values, by section name."""
    command, host, device = (
        _create_private_value_editor(redaction, COMMAND),
        _create_private_value_editor(redaction, HOST),
        redaction.replace_device_name,
    )
    variable, clock = _create_environment_variable_editor(redaction), redaction.replace_uuid
    environment = create_message_fields_editor("Environment", variables=variable)
    process = create_message_fields_editor(
        "LaunchedProcess", command=command, arguments=command, folder=command, environment=environment
    )
    agent_target = create_message_fields_editor("AgentTarget", device_name=device, host_name=host)
    agent = create_message_fields_editor(
        "AgentActivity",
        request=create_message_fields_editor(
            "AgentRequest", target=agent_target, command_line=command, folder=command, output=command
        ),
        launched=create_message_fields_editor("LaunchedProcesses", processes=process),
    )
    related = create_optional_message_editor("RelatedClock", uuid=clock)
    conversion = create_message_fields_editor("Conversion", from_uuid=clock, to_uuid=clock)
    return {
        OPTIONS: create_message_fields_editor(
            "AnalysisOptions", device_name=device, host_name=host, launch=_create_launch_options_editor(redaction)
        ),
        AGENTS: create_message_fields_editor("AgentActivities", activities=agent),
        UI_DATA: create_message_fields_editor(
            "UiData",
            **dict.fromkeys(("host_name", "second_host_name", "third_host_name"), host),
            installation_folder=redaction.redact_folders,
            command_line=command,
        ),
        CLOCKS: create_message_fields_editor(
            "TimeConversions",
            clocks=create_message_fields_editor(
                "Clocks", clocks=create_message_fields_editor("Clock", uuid=clock, related=related)
            ),
            conversions=create_message_fields_editor("Conversions", conversions=conversion),
        ),
    }


def create_trailer_editor(redaction: Redaction) -> FieldEdit:
    """Return a function that replaces binary UUIDs of GPUs in the report trailer.

    Textual UUIDs are left to the later search for private values.
    """

    def replace_if_binary(value: bytes) -> bytes:
        return value if is_text(value) else redaction.replace_uuid(value)

    gpu, cuda_device = (
        create_message_fields_editor(message, uuid=replace_if_binary) for message in ("Gpu", "CudaDevice")
    )
    devices = create_optional_message_editor("Devices", gpus=gpu, cuda_devices=cuda_device)
    return create_message_fields_editor(
        "Trailer", targets=create_optional_message_editor("TargetDevices", devices=devices)
    )


def create_message_fields_editor(message_name: str, **edits: FieldEdit) -> FieldEdit:
    """Return a function that edits a message by applying the given edits to its fields.

    Args:
        message_name: Name of the message type.
        edits: Editing function of each field, by field name.
    """
    fields = load_fields(message_name)
    return create_message_editor({getattr(fields, name): edit for name, edit in edits.items()})


def create_optional_message_editor(message_name: str, **edits: FieldEdit) -> FieldEdit:
    """Return a function that edits the fields of a message. Bytes that are not a message are returned unchanged."""
    edit = create_message_fields_editor(message_name, **edits)

    def edit_if_message(data: bytes) -> bytes:
        try:
            return edit(data)
        except Damage:
            return data

    return edit_if_message


def _create_private_value_editor(redaction: Redaction, kind: str) -> FieldEdit:
    """Return a function that replaces a private value of the given kind."""
    return lambda value: redaction.replace_value(kind, value)


def _create_environment_variable_editor(redaction: Redaction) -> FieldEdit:
    """Return a function that removes the name and the value of an environment variable."""

    def clear_variable(data: bytes) -> bytes:
        name, value = (bytes(Message(memoryview(data)).bytes_value(n)) for n in (_VARIABLE.name, _VARIABLE.value))
        if name or value:
            redaction.replace_value(ENVIRONMENT, name + b"=" + value + b"\0")
        return create_message_fields_editor("Variable", name=_clear_value, value=_clear_value)(data)

    return clear_variable


def _create_launch_options_editor(redaction: Redaction) -> FieldEdit:
    """Return a function that removes environment variables from launch options.

    The returned function redacts all other strings as command lines.
    """
    variable = _create_environment_variable_editor(redaction)

    def redact_field(span: FieldSpan, value: bytes) -> bytes:
        if span.kind != DELIMITED:
            return value
        if span.number == _LAUNCH.variables:
            return variable(value)
        private = span.number in (_LAUNCH.command, _LAUNCH.arguments, _LAUNCH.folder) or _is_only_text(value)
        return redaction.replace_value(COMMAND, value) if private else value

    return lambda data: edit_message(data, redact_field)


def create_target_machine_editor(redaction: Redaction) -> FieldEdit:
    """Return a function that redacts the description of a target machine."""
    network = create_message_fields_editor(
        "NetworkDevices", devices=lambda data: edit_message(data, _create_network_device_field_editor(redaction))
    )
    field = load_fields("Property")
    edits: dict[int, FieldEdit] = {
        **{number: _create_private_value_editor(redaction, kind) for number, kind in PRIVATE_PROPERTIES.items()},
        **dict.fromkeys(FOLDER_PROPERTIES, redaction.redact_folders),
        NETWORK_PROPERTY: lambda value: value if is_text(value) else network(value),
    }

    def redact_property(data: bytes) -> bytes:
        chosen = edits.get(Message(memoryview(data)).int_value(field.id) or 0)
        return data if chosen is None else create_message_fields_editor("Property", value=chosen)(data)

    properties = create_message_fields_editor("Properties", properties=redact_property)
    return create_message_fields_editor("Target", device_name=redaction.replace_device_name, properties=properties)


def _create_network_device_field_editor(redaction: Redaction) -> Callable[[FieldSpan, bytes], bytes]:
    """Return a function that clears a field of a network device if it is the hardware address."""

    def clear_if_address(span: FieldSpan, value: bytes) -> bytes:
        if span.number != load_fields("NetworkDevice").guid or not value.strip(b"\0"):
            return value
        redaction.counts[ADDRESS] += 1
        return b"" if span.kind == DELIMITED else b"\0" if span.kind == VARINT else bytes(len(value))

    return clear_if_address


def create_process_editor(redaction: Redaction) -> FieldEdit:
    """Return a function that removes the folders and the arguments of a process, but not its program name."""

    def redact_process(data: bytes) -> bytes:
        replaced = _redact_process_strings_by_offset(data, list(iterate_field_spans(data)))

        def replace_string(span: FieldSpan, value: bytes) -> bytes:
            if span.value_start not in replaced:
                return value
            redaction.replace_value(COMMAND, value)
            return replaced[span.value_start]

        return edit_message(data, replace_string)

    return redact_process


class ProcessesOfEvent(NamedTuple):
    """The properties of the processes in one event that determine how the event is redacted.

    Attributes:
        environments: Ids of the strings that hold the environments of the processes.
        need_edit: Whether redaction changes at least one of the processes.
    """

    environments: list[int]
    need_edit: bool

    @classmethod
    def parse(cls, event: bytes) -> ProcessesOfEvent:
        """Collect the properties of the processes in an encoded event."""
        environments: list[int] = []
        need_edit = False
        for outer in iterate_field_spans(event):
            if outer.number == load_fields("Event").process and outer.kind == DELIMITED:
                data = event[outer.value_start : outer.end]
                fields = list(iterate_field_spans(data))
                numbers = [p for p in fields if p.number == _PROCESS.environment_text_id and p.kind == VARINT]
                environments += [convert_to_signed(read_varint(memoryview(data), p.value_start)[0]) for p in numbers]
                need_edit = need_edit or bool(_redact_process_strings_by_offset(data, fields))
        return cls(environments, need_edit)


def _redact_process_strings_by_offset(data: bytes, fields: list[FieldSpan]) -> dict[int, bytes]:
    """Return the redacted strings of a process by offset in ``data``. Strings that do not change are omitted."""
    texts = [(p.value_start, p.number, data[p.value_start : p.end]) for p in fields if p.kind == DELIMITED]
    named = next((value for _, number, value in texts if number == _PROCESS.name), b"")
    replaced: dict[int, bytes] = {}
    for start, number, value in texts:
        if number == _PROCESS.command and value != named:
            replaced[start] = b"" if named else extract_program_name(value)
        elif number in (_PROCESS.path, _PROCESS.folder, _PROCESS.arguments):
            replaced[start] = b""
        if replaced.get(start) == value:
            del replaced[start]
    return replaced


def _clear_value(_value: bytes) -> bytes:
    """Return empty bytes to replace the value of a field."""
    return b""


def _is_only_text(value: bytes) -> bool:
    """Return whether bytes are a non-empty string that cannot be parsed as a message."""
    if not value or not is_text(value):
        return False
    try:
        return not list(iterate_field_spans(value))
    except Damage:
        return True
