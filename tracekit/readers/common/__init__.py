"""Code that several readers share: column conversion, memory budgets, protobuf and SQLite files.

Every other module and folder of tracekit.readers implements one format, or code that the formats of one tool share.
"""
