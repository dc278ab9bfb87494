"""The messages in ``schemas/proto``: the compiled files are what the texts say, and any runtime can load them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from tracekit import schemas
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf import messages
from tracekit.readers.common.protobuf.field_numbers import find_field_path, load_field_numbers

TEXTS = sorted((schemas.FOLDER / "proto").glob("*.proto"))


def test_there_are_messages() -> None:
    assert "ncu_report" in {p.stem for p in TEXTS}
    assert {p.stem for p in TEXTS} == {p.stem for p in (schemas.FOLDER / "proto").glob("*.binpb")}


@pytest.mark.skipif(importlib.util.find_spec("grpc_tools") is None, reason="grpcio-tools is not installed")
@pytest.mark.parametrize("text", TEXTS, ids=lambda p: p.stem)
def test_compiled_files_are_up_to_date(text: Path, tmp_path: Path) -> None:
    """To write them anew: ``python -m grpc_tools.protoc -I. --descriptor_set_out=NAME.binpb NAME.proto``."""
    out = tmp_path / "compiled"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{text.parent}", f"--descriptor_set_out={out}", text.name]
    subprocess.run(command, check=True, capture_output=True)
    compiled, kept = (
        descriptor_pb2.FileDescriptorSet.FromString(p.read_bytes()) for p in (out, text.with_suffix(".binpb"))
    )
    assert compiled == kept


@pytest.mark.parametrize("text", TEXTS, ids=lambda p: p.stem)
def test_nothing_is_required_and_every_message_is_used(text: Path) -> None:
    compiled = descriptor_pb2.FileDescriptorSet.FromString(text.with_suffix(".binpb").read_bytes())
    for message in compiled.file[0].message_type:
        assert message.field, message.name
        assert not [f.name for f in message.field if f.label == descriptor_pb2.FieldDescriptorProto.LABEL_REQUIRED]


def test_messages_are_taken_apart() -> None:
    size = messages.load_message_class("ncu_report", "Size")
    assert messages.load_message_class("ncu_report", "Size") is size
    assert messages.parse(size, memoryview(b"\x08\x05\xa0\x06\x01"), "a size").x == 5
    with pytest.raises(Damage, match=r"a size is not a valid protobuf message \(2 bytes\)"):
        messages.parse(size, b"\x08\xff", "a size")


@pytest.mark.parametrize("text", TEXTS, ids=lambda p: p.stem)
def test_field_numbers_are_those_of_the_runtime(text: Path) -> None:
    compiled = descriptor_pb2.FileDescriptorSet.FromString(text.with_suffix(".binpb").read_bytes())
    for declared in compiled.file[0].message_type:
        numbers = load_field_numbers(text.stem, declared.name)
        runtime = messages.load_message_class(text.stem, declared.name).DESCRIPTOR
        assert vars(numbers).keys() == {*runtime.fields_by_name, "message_types"}
        assert all(getattr(numbers, f.name) == f.number for f in runtime.fields)
        assert numbers.message_types == {
            f.name: f.message_type.name if f.message_type else f.enum_type.name
            for f in runtime.fields
            if f.message_type or f.enum_type
        }


def test_field_paths() -> None:
    assert load_field_numbers("nsys_rep", "Event").api_call == 108
    assert find_field_path("nsys_rep", "GpuActivity", "start") == (1,)
    assert find_field_path("nsys_rep", "GpuActivity", "kernel.grid_x") == (101, 10)
    with pytest.raises(AttributeError, match="no attribute 'grid'"):
        find_field_path("nsys_rep", "GpuActivity", "kernel.grid")


def test_walk_of_events_knows_the_declared_numbers() -> None:
    """``native/protobuf.c`` and the redaction of blocks have these numbers built in."""
    events, strings = load_field_numbers("nsys_rep", "EventBlock"), load_field_numbers("nsys_rep", "StringBlock")
    assert (events.events, events.generic_events, load_field_numbers("nsys_rep", "Event").type) == (1, 2, 1)
    assert (strings.strings, strings.process_streams) == (1, 2)
