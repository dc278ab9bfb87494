"""The files and folders that a URL refers to."""

from __future__ import annotations

from typing import NamedTuple


class Listing(NamedTuple):
    """The files and folders that a URL refers to.

    Attributes:
        files: Sorted URLs of the files.
        folders: Sorted URLs of the folders inside the folder, or of the folders that match the pattern.
        is_folder: Whether the URL is that of a folder.
    """

    files: list[str]
    folders: list[str]
    is_folder: bool = False
