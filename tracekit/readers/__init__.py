"""Readers of the supported file formats.

The module or package of each format defines ``READER``, an instance of ``Reader``. All other packages contain code that
several readers share.
"""
