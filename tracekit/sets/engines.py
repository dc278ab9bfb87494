"""Engines apply a function to every member of a set, one member or several at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracekit.sets.member import Member

Result = TypeVar("Result")


class Engine(Protocol):
    """The interface of engines."""

    def map(
        self, function: Callable[[Member], Result], members: Sequence[Member]
    ) -> Iterator[tuple[Member, Result | Exception]]:
        """Yield each member, in the order of the members, with the result of the function or its error.

        Args:
            function: A function that can be pickled: a function of a module, or a ``functools.partial`` of one. Its
                result should be small, because an engine may send it to another process.
            members: The members.

        Yields:
            The member, and what the function returned. If it raised a ``TracekitError`` or an ``OSError``, the error.
        """
        ...


class LocalEngine:
    """An engine that processes one member at a time in this process."""

    def map(
        self, function: Callable[[Member], Result], members: Sequence[Member]
    ) -> Iterator[tuple[Member, Result | Exception]]:
        """Yield each member with the result of the function, or its error."""
        for member in members:
            yield member, outcome(function, member)


def outcome(function: Callable[[Member], Result], member: Member) -> Result | Exception:
    """Return the result of a function for a member. A ``TracekitError`` or an ``OSError`` is returned, not raised."""
    try:
        return function(member)
    except (TracekitError, OSError) as e:
        return e
