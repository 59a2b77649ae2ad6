"""Errors that the package raises at run time; wrong arguments raise ``ValueError`` and ``TypeError``."""

from __future__ import annotations

from pathlib import Path

__all__ = [
    "AnnotationError",
    "BadBatchError",
    "BadSamplesWarning",
    "CacheError",
    "ImageError",
    "LitLoaderError",
    "NotResumableWarning",
    "ResumeWarning",
    "SharedGeneratorError",
    "TooManyBadSamplesError",
    "UnsafePathError",
    "UnsendableBatchError",
    "WorkerDiedError",
    "WorkerRestartWarning",
]


class LitLoaderError(Exception):
    """Base of every run-time error of this package."""


class AnnotationError(LitLoaderError, ValueError):
    """An annotation file says something that cannot be used.

    Args:
        message: What was found, the rule, the remedy.
        path: The annotation file.
        line: Line in the file, counted from 1, where it is known.
    """

    def __init__(self, message: str, *, path: Path | str | None = None, line: int | None = None) -> None:
        self.message, self.path, self.line = message, path, line
        place = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(f"{place}{message}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_annotation_error, (type(self), self.message, self.path, self.line)


def _rebuild_annotation_error(
    kind: type[AnnotationError], message: str, path: Path | str | None, line: int | None
) -> AnnotationError:
    return kind(message, path=path, line=line)


class UnsafePathError(AnnotationError):
    """An annotation file names a path that leaves the root of its data set."""


class CacheError(LitLoaderError, OSError):
    """A cache file is damaged or was written by another version."""


class ImageError(LitLoaderError, OSError):
    """An image cannot be decoded; the message names the file."""


class BadBatchError(LitLoaderError, RuntimeError):
    """A batch cannot be delivered: all of its samples are bad, or one is and so are those that were to replace it."""


class BadSamplesWarning(UserWarning):
    """Samples could not be made in an epoch that has ended; the message sums them up."""


class TooManyBadSamplesError(LitLoaderError, RuntimeError):
    """More samples of an epoch could not be made than the loader is to put up with."""


class NotResumableWarning(UserWarning):
    """A loader's state was asked for, and it will not be possible to go on from it."""


class ResumeWarning(UserWarning):
    """A loader goes on from a state on an assumption or at a cost, or left the state aside."""


class SharedGeneratorError(LitLoaderError, RuntimeError):
    """Worker threads would draw from a generator that they share, and a seed promised otherwise."""


class UnsendableBatchError(LitLoaderError, RuntimeError):
    """A batch cannot get from its worker process to the main one, because it cannot be pickled or unpickled."""


class WorkerDiedError(LitLoaderError, RuntimeError):
    """A worker process ended without having been asked to."""


class WorkerRestartWarning(RuntimeWarning):
    """A worker process ended without having been asked to, and was replaced."""
