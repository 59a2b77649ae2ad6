"""Errors that the package raises at run time; wrong arguments raise ``ValueError`` and ``TypeError``."""

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
    """Base of every run-time error of this package."""


class AnnotationError(LitLoaderError, ValueError):
    """An annotation file holds a value that cannot be used.

    Args:
        message: What was found, the rule, the remedy.
        path: The annotation file, or None if there is none.
        line: Line in the file, counted from 1, or None if the format has no lines.
    """

    def __init__(self, message: str, *, path: Path | str | None = None, line: int | None = None) -> None:
        self.message, self.path, self.line = message, path, line
        place = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(f"{place}{message}")

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), path=self.path, line=self.line), (self.message,)


class UnsafePathError(AnnotationError):
    """An annotation file names a path that leaves the root of its data set."""


class CacheError(LitLoaderError, OSError):
    """A cache file is damaged or was written by another version."""


class ImageError(LitLoaderError, OSError):
    """An image cannot be decoded; the message names the file."""


class BadBatchError(LitLoaderError, RuntimeError):
    """A batch has no sample left: all of its samples are bad, or one is and so are all of its replacements."""


class BadSamplesWarning(UserWarning):
    """An epoch that has ended had bad samples; the message sums them up."""


class TooManyBadSamplesError(LitLoaderError, RuntimeError):
    """An epoch had more bad samples than ``max_bad_samples`` allows."""


class NotResumableWarning(UserWarning):
    """A loader's ``state_dict()`` returned a state that cannot be resumed; the message gives the reason."""


class PrivateGeneratorWarning(UserWarning):
    """A dataset makes different samples from the same key, so a seed does not fix its batches."""


class ResumeWarning(UserWarning):
    """A loader resumes from a state on an assumption or at a cost, or ignored the state."""


class SharedGeneratorWarning(UserWarning):
    """Worker threads seem to draw from a generator that they share, so a seed could not fix what they draw."""


class UnsendableBatchError(LitLoaderError, RuntimeError):
    """A batch cannot be sent from its worker process to the main one: it cannot be pickled or unpickled."""


class WorkerDiedError(LitLoaderError, RuntimeError):
    """A worker process ended unexpectedly."""


class WorkerRestartWarning(RuntimeWarning):
    """A worker process ended unexpectedly and was replaced."""
