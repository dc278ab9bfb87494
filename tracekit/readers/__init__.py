"""Readers of the supported file formats.

The module or package of each format defines ``READER``, an instance of ``Reader``. The package ``redaction`` writes
copies without private values. All other packages contain code that several readers share.
"""
