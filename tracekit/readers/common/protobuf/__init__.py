"""Protocol Buffers: decode single messages, messages with a schema, and batches of many messages in a sandbox."""
