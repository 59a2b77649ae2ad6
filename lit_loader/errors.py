"""Errors and warnings of the package at run time; wrong arguments raise ``ValueError`` and ``TypeError``."""

from __future__ import annotations

from functools import partial
from pathlib import Path

__all__ = [
    "AnnotationError",
    "BadBatchError",
    "BadSamplesWarning",
    "CacheError",
    "ImageError",
    "LitLoaderError",
    "NotResumableWarning",
    "PrivateGeneratorWarning",
    "ResumeWarning",
    "SharedGeneratorWarning",
    "TooManyBadSamplesError",
    "UnsafePathError",
    "UnsendableBatchError",
    "WorkerDiedError",
    "WorkerRestartWarning",
]


class LitLoaderError(Exception):
    """Base class of all run-time errors of this package."""


class AnnotationError(LitLoaderError, ValueError):
    """An annotation file contains an invalid value.

    Args:
        message: The expected value, the value in the file, and the remedy.
        path: The annotation file; None if there is no file.
        line: Line in the file, counted from 1; None if the format has no lines.
    """

    def __init__(self, message: str, *, path: Path | str | None = None, line: int | None = None) -> None:
        self.message = message
        self.path = path
        self.line = line
        place = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(f"{place}{message}")

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions are pickled with positional arguments only; a worker process sends this one to the main process.
        return partial(type(self), path=self.path, line=self.line), (self.message,)


class UnsafePathError(AnnotationError):
    """An annotation file contains a path that leads out of the root of its dataset."""


class CacheError(LitLoaderError, OSError):
    """A cache file is damaged or was written by another version."""


class ImageError(LitLoaderError, OSError):
    """An image cannot be decoded; the message names the file."""


class BadBatchError(LitLoaderError, RuntimeError):
    """A batch has no usable sample: all samples are bad, or a bad sample's replacements are bad as well."""


class BadSamplesWarning(UserWarning):
    """An epoch ended that had bad samples; the message summarizes them."""


class TooManyBadSamplesError(LitLoaderError, RuntimeError):
    """An epoch had more bad samples than ``max_bad_samples`` allows."""


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
