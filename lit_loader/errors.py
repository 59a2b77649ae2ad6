"""Errors that the package raises at run time; wrong arguments raise ``ValueError`` and ``TypeError``."""

from __future__ import annotations

from pathlib import Path

__all__ = [
    "AnnotationError",
    "CacheError",
    "ImageError",
    "LitLoaderError",
    "SharedGeneratorError",
    "UnsafePathError",
    "WorkerDiedError",
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


class SharedGeneratorError(LitLoaderError, RuntimeError):
    """Worker threads would draw from a generator that they share, and a seed promised otherwise."""


class WorkerDiedError(LitLoaderError, RuntimeError):
    """A worker process ended without having been asked to."""
