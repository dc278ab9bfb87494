"""Decode Protocol Buffers, as single messages or as batches of many messages, and edit encoded messages."""
