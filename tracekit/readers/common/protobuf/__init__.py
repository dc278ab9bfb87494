"""Protocol Buffers: single messages, messages with a schema, and batches of many messages decoded in a sandbox."""
