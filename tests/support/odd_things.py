"""Exceptions and results that make trouble on their way from a worker: they do not pickle, or not here, or are large.

Each is made where it is needed, by its name, so that the datasets themselves can be sent to any worker.
"""

from __future__ import annotations

import io
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset, IterableDataset

MAIN = "TESTS_MAIN_PID"  # in the environment, of the process that consumes


def in_main() -> bool:
    return os.environ.get(MAIN) == str(os.getpid()) and threading.current_thread() is threading.main_thread()


class TwoArgumentsError(Exception):
    def __init__(self, first: Any, second: Any) -> None:
        super().__init__(first, second)


class KeywordOnlyError(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(code)


class NumberError(Exception):
    """Its argument must be a number."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.next = code + 1


class MuteError(Exception):
    """Its ``load_state_dict`` has no effect."""

    def __init__(self, code: Any) -> None:
        super().__init__()


class StrRaisesError(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError("str")


class ReduceRaisesError(TwoArgumentsError):
    def __reduce__(self) -> Any:
        raise ZeroDivisionError("reduce")


class ReduceExitsError(TwoArgumentsError):
    def __reduce__(self) -> Any:
        raise SystemExit("reduce")


class SetstateRaisesError(TwoArgumentsError):
    def __init__(self, first: Any, second: Any) -> None:
        super().__init__(first, second)
        self.more = 1

    def __setstate__(self, state: Any) -> None:
        raise ZeroDivisionError("setstate")


class AnotherKindError(TwoArgumentsError):
    def __reduce__(self) -> Any:
        return ValueError, ("another kind",)


class LoadsElsewhereError(TwoArgumentsError):
    """It can be loaded anywhere but where it is wanted."""

    def __reduce__(self) -> Any:
        return _elsewhere, (type(self), self.args, ZeroDivisionError)


class LoadingExitsError(TwoArgumentsError):
    def __reduce__(self) -> Any:
        return _elsewhere, (type(self), self.args, SystemExit)


def _elsewhere(kind: Any, arguments: Any, failure: Any) -> Any:
    if in_main():
        raise failure("not here")
    return kind(*arguments)


class NotesAreATupleError(TwoArgumentsError):
    def __init__(self, first: Any, second: Any) -> None:
        super().__init__(first, second)
        self.__notes__ = ("one",)


class NotesRaiseError(Exception):
    @property
    def __notes__(self) -> Any:
        raise ZeroDivisionError("notes")


def _local() -> Exception:
    class LocalError(Exception):
        pass

    return LocalError("here")


def _noted(error: Exception) -> Exception:
    error.add_note("a note of its own")
    return error


class Case(NamedTuple):
    """An exception.

    Attributes:
        make: Makes it.
        comes_as: The type that arrives from a worker process; threads are the same.
        args: Its arguments there, if it comes as itself; None: its message is all it has.
    """

    make: Callable[[], Exception]
    comes_as: type[Exception]
    args: tuple[Any, ...] | None = None


ERRORS: dict[str, Case] = {
    "of a message": Case(lambda: ValueError("one"), ValueError),
    "with a note": Case(lambda: _noted(ValueError("one")), ValueError),
    "two arguments": Case(lambda: TwoArgumentsError(1, "two"), TwoArgumentsError, (1, "two")),
    "two and a note": Case(lambda: _noted(TwoArgumentsError(1, 2)), TwoArgumentsError, (1, 2)),
    "of the codec": Case(
        lambda: UnicodeDecodeError("utf-8", b"x", 0, 1, "why"), UnicodeDecodeError, ("utf-8", b"x", 0, 1, "why")
    ),
    "of a process": Case(lambda: subprocess.CalledProcessError(3, "cmd"), subprocess.CalledProcessError, (3, "cmd")),
    "wants a number": Case(lambda: NumberError(4), NumberError, (4,)),
    "forgets": Case(lambda: MuteError(4), MuteError, ()),
    "group": Case(lambda: ExceptionGroup("both", [ValueError("one"), KeyError("two")]), ExceptionGroup),
    "str raises": Case(lambda: StrRaisesError("one"), StrRaisesError, ("one",)),
    "small tensor": Case(lambda: TwoArgumentsError(1, torch.ones(9)), TwoArgumentsError),
    "keyword only": Case(lambda: KeywordOnlyError(code=3), RuntimeError),
    "local class": Case(_local, RuntimeError),
    "reduce raises": Case(lambda: ReduceRaisesError(1, 2), RuntimeError),
    "reduce exits": Case(lambda: ReduceExitsError(1, 2), RuntimeError),
    "setstate raises": Case(lambda: SetstateRaisesError(1, 2), RuntimeError),
    "another kind": Case(lambda: AnotherKindError(1, 2), RuntimeError),
    "loads elsewhere": Case(lambda: LoadsElsewhereError(1, 2), RuntimeError),
    "loading exits": Case(lambda: LoadingExitsError(1, 2), RuntimeError),
    "notes are a tuple": Case(lambda: NotesAreATupleError(1, 2), RuntimeError),
    "notes raise": Case(lambda: NotesRaiseError("one"), NotesRaiseError),
    "a lock": Case(lambda: TwoArgumentsError(1, threading.Lock()), RuntimeError),
    "a file": Case(lambda: TwoArgumentsError(1, io.TextIOWrapper(io.BytesIO())), RuntimeError),
    "a generator": Case(lambda: TwoArgumentsError(1, (n for n in ())), RuntimeError),
    "big tensor": Case(lambda: TwoArgumentsError(1, torch.zeros(1 << 20)), RuntimeError),
    "big bytes": Case(lambda: TwoArgumentsError(1, bytes(1 << 20)), RuntimeError),
}


class ErrorsAndNumbers(Dataset[int]):
    """Every fourth sample raises, the errors of the table one after the other; the others are numbers."""

    def __len__(self) -> int:
        return 4 * len(ERRORS)

    def __getitem__(self, index: int) -> int:
        if index % 4 == 1:
            raise list(ERRORS.values())[index // 4].make()
        return index


# -- results ------------------------------------------------------------------------------------------------


class ReduceRaises:
    def __reduce__(self) -> Any:
        raise ZeroDivisionError("reduce")


class ReduceStops:
    """Ends no stream and no loop."""

    def __reduce__(self) -> Any:
        raise StopIteration


class LoadingRaises:
    failure: type[Exception] = ZeroDivisionError

    def __reduce__(self) -> Any:
        return _not_here, (self.failure,)


class LoadingStops(LoadingRaises):
    failure = StopIteration


def _not_here(failure: type[Exception]) -> Any:
    raise failure("loading")


def _local_object() -> Any:
    class Local:
        pass

    return Local()


RESULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "a lock": (threading.Lock, "'_thread.lock' object"),
    "a generator": (lambda: (n for n in ()), "'generator' object"),
    "a function": (lambda: lambda: None, "<lambda>"),
    "a local object": (_local_object, "<locals>.Local"),
    "a file": (lambda: io.TextIOWrapper(io.BytesIO()), "'_io.TextIOWrapper'"),
    "reduce raises": (ReduceRaises, "ZeroDivisionError: reduce"),
    "reduce stops": (ReduceStops, "StopIteration: "),
    "loading raises": (LoadingRaises, "cannot be unpickled in the main process (ZeroDivisionError: loading)"),
    "loading stops": (LoadingStops, "cannot be unpickled in the main process (StopIteration: loading)"),
}


class ResultsAndNumbers(Dataset[Any]):
    """Every fourth sample holds a result of the table, beside a tensor that goes through shared memory."""

    def __len__(self) -> int:
        return 4 * len(RESULTS)

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample: dict[str, Any] = {"index": index, "image": torch.full((96, 96), float(index))}
        if index % 4 == 1:
            sample["odd"] = [0, list(RESULTS.values())[index // 4][0]()]
        return sample


class ResultsInAStream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from (ResultsAndNumbers()[index] for index in range(4 * len(RESULTS)))


def as_list(samples: list[Any]) -> list[Any]:
    return samples
