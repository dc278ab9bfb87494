"""Public names that are imported when they are first used, so that importing the package costs next to nothing."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing takes longer than all of this
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def attributes(
    namespace: dict[str, Any], **modules: tuple[str, ...]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package.

    Args:
        namespace: The globals of the package, which hold a name once it was used.
        modules: Which names each of its modules defines; each module is an attribute itself.
    """
    package = namespace["__name__"]
    homes = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        from importlib import import_module

        if name in homes:
            namespace[name] = getattr(import_module(f"{package}.{homes[name]}"), name)
            return namespace[name]
        if name in modules:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted({*namespace, *homes, *modules})
