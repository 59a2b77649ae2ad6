"""An exception on its way from a worker to the consumer."""

from __future__ import annotations

import contextlib
import pickle
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from lit_loader.transport import pickle_small

__all__ = ["RemoteError"]

_MAX_COPY_BYTES = 1 << 16  # of an exception that cannot be built from a message


class _Lines(str):
    """A message that keeps its line breaks where KeyError shows the repr of its argument."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True)
class RemoteError:
    """An exception that was raised in a worker.

    Attributes:
        kind: Its class, pickled by reference; None if it cannot be.
        copy: The exception itself, pickled, where its class takes no message alone; None: there is no need of it, or
            it cannot be sent, or is too large.
        message: The name of its class, where it was raised, and its traceback.
    """

    kind: bytes | None
    copy: bytes | None
    message: str

    @classmethod
    def of(cls, error: BaseException, where: str) -> RemoteError:
        """Return ``error`` as something that can be sent.

        Args:
            error: The exception; nothing that its class does makes this fail.
            where: Where it was raised, as in "in DataLoader worker process 1".
        """
        name = type(error).__name__
        message = f"Caught {name} {where}.\nOriginal {_traceback(error)}"
        kind = copy = None
        with contextlib.suppress(BaseException):  # a worker hears of no Ctrl-C: this is the class's own doing
            kind = pickle.dumps(type(error))
            if _built(type(error), message) is None:
                copy = _copied(error)
        return cls(kind, copy, message)

    def reraise(self) -> None:
        """Raise it again with its own type and the worker's traceback in its message, or else in a note.

        Raises:
            BaseException: Of the original type, or RuntimeError if that can be neither built nor loaded here.
        """
        error = self._rebuilt()
        try:
            raise error
        finally:
            del error  # else its traceback, and with it this frame and the pass, would live on in a cycle

    def _rebuilt(self) -> BaseException:
        found: BaseException | None = None
        with _whatever_it_raises():
            kind = None if self.kind is None else pickle.loads(self.kind)
            found = None if kind is None else _built(kind, self.message)
        if found is None and self.copy is not None:
            with _whatever_it_raises():
                copy = pickle.loads(self.copy)
                if isinstance(copy, BaseException):
                    copy.add_note(self.message)
                    found = copy
        return RuntimeError(self.message) if found is None else found


@contextlib.contextmanager
def _whatever_it_raises() -> Iterator[None]:
    """Pass over what a class does when an exception of it is made, but not over Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException:
        return


def _built(kind: type[BaseException], message: str) -> BaseException | None:
    """Return an exception with a message, in a note if it does not show it; None: its class wants something else."""
    found: BaseException | None = None
    with _whatever_it_raises():
        if kind is KeyError:
            made: object = KeyError(_Lines(message))
        elif getattr(kind, "message", None):
            made = kind(message=message)  # type: ignore[call-arg] # torch's sign that it takes this keyword
        else:
            made = kind(message)
        if isinstance(made, BaseException):
            if message not in str(made):
                made.add_note(message)
            found = made
    return found


def _copied(error: BaseException) -> bytes | None:
    data = pickle_small(error, _MAX_COPY_BYTES)
    return data if type(pickle.loads(data)) is type(error) else None


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as failure:  # of a property of the exception's, say
        return f"{type(error).__name__}; its traceback cannot be shown: {type(failure).__name__}\n"
