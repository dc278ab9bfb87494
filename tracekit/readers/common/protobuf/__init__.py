"""Protobuf messages: small ones one at a time, declared ones by the runtime, many of one kind in step with numpy."""
