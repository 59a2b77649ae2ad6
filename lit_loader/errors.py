"""Errors and warnings of the package at run time; wrong arguments raise ``ValueError`` and ``TypeError``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

__all__ = [
    "AnnotationError",
    "BadBatchError",
    "BadSamplesWarning",
    "CacheError",
    "DataChangedError",
    "DataWaitWarning",
    "ImageError",
    "LitLoaderError",
    "NotResumableWarning",
    "PrivateGeneratorWarning",
    "ResumeError",
    "ResumeWarning",
    "SettingError",
    "SettingText",
    "SharedGeneratorWarning",
    "StorageError",
    "TooManyBadSamplesError",
    "UnsafePathError",
    "UnsendableBatchError",
    "WorkerDiedError",
    "WorkerRestartWarning",
    "as_argument",
    "message_of",
]

SettingText: TypeAlias = Callable[[str, Any], str]
"""Function that writes a setting, its name and its value, the way a Python call, a command or a config writes it."""


def as_argument(name: str, value: Any) -> str:
    """Return a setting as a Python argument, such as ``masks=False``.

    Args:
        name: The argument; ``policy.NAME`` is a field of a `ReadPolicy`.
        value: The value, or ``...`` if the reader has to choose it.
    """
    text = "..." if value is ... else repr(value)
    # Sources and `read_annotations` take the policy as a mapping.
    owner, _, field = name.partition(".")
    return f"policy={{{field!r}: {text}}}" if owner == "policy" and field else f"{name}={text}"


def _with_remedy(message: str, settings: Mapping[str, Any], remedy: str, write: SettingText) -> str:
    # Each of the settings solves the problem alone.
    advice = " or ".join(write(name, value) for name, value in settings.items())
    remedies = [*([remedy] if remedy else []), *([f"pass {advice}"] if advice else [])]
    return f"{message}; {', or '.join(remedies)}" if remedies else message


def message_of(error: BaseException, write: SettingText = as_argument) -> str:
    """Return the message of any exception; the package's own write their settings by ``write``."""
    return error.text(write) if isinstance(error, LitLoaderError | SettingError) else str(error)


class LitLoaderError(Exception):
    """Base class of all run-time errors of this package.

    Args:
        message: The problem: the expected value and the one that arrived.
        remedy: What to do, apart from ``settings``.
        settings: Arguments that solve the problem, by name, each with its value or with ``...`` for any value.
    """

    def __init__(self, message: str = "", *, remedy: str = "", settings: Mapping[str, Any] | None = None) -> None:
        self.problem = message
        self.remedy = remedy
        self.settings = dict(settings or {})
        # The message is for Python. A command or an app calls `text` to write settings as its users do.
        super().__init__(self.text())

    def text(self, write: SettingText = as_argument) -> str:
        """Return the message with its settings written as arguments of Python, or by ``write``."""
        return _with_remedy(self.problem, self.settings, self.remedy, write)

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are pickled with positional arguments only; a worker process sends this one to the main process.
        return partial(type(self), remedy=self.remedy, settings=self.settings), (self.problem,)


class SettingError(ValueError):
    """An argument has a value that cannot be used.

    Args:
        argument: Name of the argument.
        value: The value that arrived.
        rule: The rule that the value breaks; the message begins with the argument, its value and this text.
        remedy: What to do, apart from ``settings``.
        settings: Arguments that solve the problem, by name, each with its value or with ``...`` for any value.
    """

    def __init__(
        self, argument: str, value: Any, rule: str, remedy: str = "", *, settings: Mapping[str, Any] | None = None
    ) -> None:
        self.argument = argument
        self.value = value
        self.rule = rule
        self.remedy = remedy
        self.settings = dict(settings or {})
        super().__init__(self.text())

    def text(self, write: SettingText = as_argument) -> str:
        """Return the message with its settings written as arguments of Python, or by ``write``."""
        problem = f"{write(self.argument, self.value)} {self.rule}"
        return _with_remedy(problem, self.settings, self.remedy, write)

    def __reduce__(self) -> tuple[Any, ...]:
        # `Exception.__reduce__` would pass the message as the argument.
        arguments = (self.argument, self.value, self.rule, self.remedy)
        return partial(type(self), settings=self.settings), arguments


class AnnotationError(LitLoaderError, ValueError):
    """An annotation file contains an invalid value.

    Args:
        message: The problem: the expected value and the one that arrived.
        path: The annotation file, or None if there is none.
        line: Line in the file, counted from 1, or None if the format has no lines.
        remedy: What to do, apart from ``settings``.
        settings: See `LitLoaderError`.
    """

    def __init__(
        self,
        message: str,
        *,
        path: Path | str | None = None,
        line: int | None = None,
        remedy: str = "",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        # Before the base class, whose constructor calls `text`.
        self.path = path
        self.line = line
        super().__init__(message, remedy=remedy, settings=settings)

    @property
    def message(self) -> str:
        """The text without the place, for a report that names the place itself."""
        return super().text()

    def text(self, write: SettingText = as_argument) -> str:
        """Return the message after the place, with its settings written as arguments of Python, or by ``write``."""
        place = "" if self.path is None else f"{self.path}: " if self.line is None else f"{self.path}:{self.line}: "
        return f"{place}{super().text(write)}"

    def __reduce__(self) -> tuple[Any, ...]:
        # The problem without the place, which the constructor would add a second time.
        rebuild = partial(type(self), path=self.path, line=self.line, remedy=self.remedy, settings=self.settings)
        return rebuild, (self.problem,)


class UnsafePathError(AnnotationError):
    """An annotation file contains a path that leads out of the root of its dataset."""


class CacheError(LitLoaderError, OSError):
    """A cache file is damaged or was written by another version."""


class DataChangedError(LitLoaderError, ValueError):
    """The data has changed since a checkpoint was saved, and ``strict_data`` is true."""


class ImageError(LitLoaderError, OSError):
    """An image cannot be decoded; the message names the file.

    Attributes:
        filename: The file if its bytes are damaged, else None.
    """

    def __str__(self) -> str:
        # Python's OSError leaves out the message if there is a file name.
        return self.text()


class ResumeError(LitLoaderError, ValueError):
    """A loader cannot resume from a state."""


class StorageError(LitLoaderError, OSError):
    """A store cannot be reached or refuses a request; the message names the URL, and no credentials."""


class BadBatchError(LitLoaderError, RuntimeError):
    """A batch has no usable sample: all samples are bad, or a bad sample's replacements are bad as well."""


class BadSamplesWarning(UserWarning):
    """An epoch ended that had bad samples; the message summarizes them."""


class TooManyBadSamplesError(LitLoaderError, RuntimeError):
    """An epoch had more bad samples than ``max_bad_samples`` allows."""


class DataWaitWarning(UserWarning):
    """Training waits for data; the message names the stage at fault and the setting to change."""


class NotResumableWarning(UserWarning):
    """A loader's ``state_dict()`` returned a state that cannot be resumed; the message gives the reason."""


class PrivateGeneratorWarning(UserWarning):
    """A dataset returns different samples for the same key, so its batches are not reproducible from the seed."""


class ResumeWarning(UserWarning):
    """A loader resumes by assumption or at a cost, or ignores the state; the message says which."""


class SharedGeneratorWarning(UserWarning):
    """Worker threads seem to draw from a shared generator, so their draws are not reproducible from the seed."""


class UnsendableBatchError(LitLoaderError, RuntimeError):
    """A batch cannot be sent from its worker process to the main one: it cannot be pickled or unpickled."""


class WorkerDiedError(LitLoaderError, RuntimeError):
    """A worker process ended unexpectedly."""


class WorkerRestartWarning(RuntimeWarning):
    """A worker process ended unexpectedly and was replaced."""
