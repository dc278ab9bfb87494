"""What readers share: columns, counts of damage, protobuf, SQLite files, redaction.

Every other module and folder of tracekit.readers is a format, or what the forms of one tool share.
"""
