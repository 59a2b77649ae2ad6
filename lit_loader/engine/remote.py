"""An exception on its way from a worker to the consumer."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass

__all__ = ["RemoteError"]


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
        name: The name of its class.
        text: Its traceback, formatted.
        where: Where it was raised, as in "in DataLoader worker process 1".
    """

    kind: bytes | None
    name: str
    text: str
    where: str

    @classmethod
    def of(cls, error: BaseException, where: str) -> RemoteError:
        """Return ``error`` as something that can be sent."""
        try:
            kind = pickle.dumps(type(error))
        except Exception:
            kind = None
        return cls(kind, type(error).__name__, "".join(traceback.format_exception(error)), where)

    def reraise(self) -> None:
        """Raise it again with its own type and the worker's traceback in its message.

        Raises:
            Exception: Of the original type, or RuntimeError if that cannot be built from a message.
        """
        message = f"Caught {self.name} {self.where}.\nOriginal {self.text}"
        try:
            kind = pickle.loads(self.kind) if self.kind is not None else None
            if kind is KeyError:
                error: BaseException = KeyError(_Lines(message))
            elif kind is None:
                error = RuntimeError(message)
            elif getattr(kind, "message", None):
                error = kind(message=message)
            else:
                error = kind(message)
        except Exception:
            error = RuntimeError(message)
        try:
            raise error
        finally:
            del error  # else its traceback, and with it this frame and the pass, would live on in a cycle
