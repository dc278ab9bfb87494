"""Import modules when their names are first used, so that importing a package is fast."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing takes longer than this module
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def create_lazy_getattr_and_dir(
    namespace: dict[str, Any], names_by_module: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions ``__getattr__`` and ``__dir__`` of a package whose modules are imported on first use.

    Args:
        namespace: The globals of the package. Imported names are cached in it.
        names_by_module: Public names in each module, by module name. A module
            may be in a subpackage, as in ``sets.analysis``. Modules of the package itself are also its attributes.
    """
    package = namespace["__name__"]
    module_by_name = {name: module for module, names in names_by_module.items() for name in names}
    modules = {module for module in names_by_module if "." not in module}

    def get_attribute(name: str) -> Any:
        """Return an attribute of the package, importing its module if necessary."""
        from importlib import import_module

        if name in module_by_name:
            namespace[name] = getattr(import_module(f"{package}.{module_by_name[name]}"), name)
            return namespace[name]
        if name in modules:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get_attribute, lambda: sorted({*namespace, *module_by_name, *modules})


def create_lazy_function(module: str, name: str) -> Callable[..., Any]:
    """Return a function that calls the function of a module, and imports the module at the first call."""

    def call(*args: Any, **kwargs: Any) -> Any:
        from importlib import import_module

        return getattr(import_module(module), name)(*args, **kwargs)

    return call
