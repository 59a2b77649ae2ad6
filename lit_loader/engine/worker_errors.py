"""Errors that a worker sends to the consumer: errors of user code, and of batches that cannot be sent."""

from __future__ import annotations

import contextlib
import pickle
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch._utils import KeyErrorMessage

from lit_loader.engine.bad_samples import stop_iteration_as_error, text_of
from lit_loader.errors import UnsendableBatchError
from lit_loader.memory import Buffer, RebuildError, decode, describe_unsendable, encode

_MAX_COPY_BYTES = 1 << 16  # of a pickled exception whose class takes more than a message
_REMEDY = (
    "return tensors, arrays, numbers, strings or containers of them from the dataset and the collate function, or use "
    'worker_method="thread", which sends nothing'
)


@dataclass(frozen=True, slots=True)
class WorkerError:
    """An exception that was raised in a worker, in a form that can be sent.

    Attributes:
        kind: Its class, pickled by reference, or None if that is not possible.
        copy: The exception itself, encoded, if its class cannot be called with a message alone. None if it can, or if
            encoding fails or the copy is too large.
        message: The name of its class, the worker, and the traceback.
    """

    kind: bytes | None
    copy: list[Buffer] | None
    message: str

    @classmethod
    def of(cls, error: BaseException, where: str) -> WorkerError:
        """Convert an exception to a form that can be sent.

        Args:
            error: The exception. Its class may raise anything when it is pickled, called or formatted.
            where: The place, such as "in DataLoader worker process 1".
        """
        name = type(error).__name__
        message = f"Caught {name} {where}.\nOriginal {_traceback(error)}"
        kind: bytes | None = None
        copy: list[Buffer] | None = None
        # Whatever the class itself raises; workers do not get Ctrl-C.
        with contextlib.suppress(BaseException):
            kind = pickle.dumps(type(error))
            if _build(type(error), message) is None:
                parts = encode(error)
                if sum(map(len, parts)) <= _MAX_COPY_BYTES and type(decode(parts)) is type(error):
                    copy = [bytes(part) for part in parts]
        return cls(kind, copy, message)

    def reraise(self, *, keyed: bool) -> None:
        """Raise the exception with its own type, and the worker's traceback in its message or in a note.

        Args:
            keyed: True if tasks have keys. A StopIteration then becomes a RuntimeError: see NOTE [StopIteration] in
                `lit_loader.engine.fetch`.

        Raises:
            BaseException: Of the original type, or RuntimeError if that can be neither built nor unpickled here.
        """
        error = self._rebuild()
        try:
            if keyed and isinstance(error, StopIteration):
                # Not from a sample or the collate function, where the fetcher has replaced it already.
                where = "code of a worker (its worker_init_fn, for example)"
                raise stop_iteration_as_error(error, where) from error
            raise error
        finally:
            # Its traceback holds this frame, a reference cycle that would keep the epoch alive.
            del error

    def _rebuild(self) -> BaseException:
        error: BaseException | None = None
        if self.kind is not None:
            with _ignore_errors():
                error = _build(pickle.loads(self.kind), self.message)
        if error is None and self.copy is not None:
            with _ignore_errors():
                copy = decode(self.copy)
                if isinstance(copy, BaseException):
                    copy.add_note(self.message)
                    error = copy
        return RuntimeError(self.message) if error is None else error


@contextlib.contextmanager
def _ignore_errors() -> Iterator[None]:
    """Ignore any error, except for Ctrl-C, of calling or unpickling the class of an exception."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException:
        return


def _build(kind: type[BaseException], message: str) -> BaseException | None:
    """Return an exception with a message, in a note if its text lacks it, or None if its class takes no message."""
    with _ignore_errors():
        if kind is KeyError:
            error: object = KeyError(KeyErrorMessage(message))
        elif getattr(kind, "message", None):
            error = kind(message=message)  # type: ignore[call-arg] # torch's sign that it takes this keyword
        else:
            error = kind(message)
        if isinstance(error, BaseException):
            if message not in str(error):
                error.add_note(message)
            return error
    return None


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as failure:
        # A property of the exception may raise, for example.
        return f"{type(error).__name__}; its traceback cannot be shown: {type(failure).__name__}\n"


def not_sent(batch: Any, number: int, error: BaseException) -> UnsendableBatchError:
    """Return the error of a batch that cannot be pickled in the worker.

    Args:
        batch: The batch.
        number: Its number in the epoch.
        error: The error of pickling it.
    """
    try:
        culprit = describe_unsendable(batch)
    except Exception:
        # A user's mapping may raise, for example.
        culprit = f"it is a {type(batch).__name__}"
    return UnsendableBatchError(
        f"batch {number} (counted from 0) could not be sent from its worker process: {culprit}, which cannot be "
        f"pickled ({type(error).__name__}: {text_of(error)}); {_REMEDY}"
    )


def not_rebuilt(number: int, error: RebuildError) -> UnsendableBatchError:
    """Return the error of a batch that cannot be unpickled in the main process."""
    return UnsendableBatchError(
        f"batch {number} (counted from 0) was sent by its worker process, but cannot be unpickled in the main process "
        f"({error}); {_REMEDY}"
    )
