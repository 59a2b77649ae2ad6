"""The log file of a run: a copy of its console output, without uninformative lines."""

from __future__ import annotations

import logging
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import Any, Final

__all__ = ["logged_run"]

_LIGHTNING: Final = ("lightning", "lightning.fabric", "lightning.pytorch")
_EPOCH_LINES: Final = "lit_loader.callbacks.progress"
_SILENT: Final = re.compile(
    r"💡 Tip: "  # advertisements of Lightning's services
    r"|Trainer already configured with model summary callbacks"
    r"|`weights_only` was not set"
)
_SILENT_WARNINGS: Final = (
    "`isinstance.treespec, LeafSpec.` is deprecated",  # Lightning 2.6 on torch 2.14, in every transfer of a batch
    "The number of training batches .* is smaller than the logging interval",  # the app lowers the interval
)
_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")


@contextmanager
def logged_run() -> Iterator[None]:
    """Copy the output, warnings and log messages of a job to the log file that Hydra opened; drop uninformative lines.

    Frames of a progress bar and the output of other processes are not copied. If a log file cannot be written, for
    example on a full disk, the job runs on without it.
    """
    # Hydra has configured the root logger: a console handler, and a file handler for the log of this job.
    files = [handler for handler in logging.root.handlers if isinstance(handler, logging.FileHandler)]
    consoles = [handler for handler in logging.root.handlers if handler not in files]
    with ExitStack() as stack:
        # Lightning's loggers have handlers of their own and do not propagate to the root.
        for logger in map(logging.getLogger, _LIGHTNING):
            if logger.handlers:
                stack.callback(setattr, logger, "handlers", logger.handlers)
                logger.handlers = [*logger.handlers, *files]
        messages = logging.getLogger("lightning.pytorch.utilities.rank_zero")
        messages.addFilter(_is_informative)
        stack.callback(messages.removeFilter, _is_informative)
        # A progress bar shows the lines of an epoch on the console.
        for console in consoles:
            console.addFilter(_is_for_console)
            stack.callback(console.removeFilter, _is_for_console)
        # On a full disk, each record would print a traceback.
        stack.callback(setattr, logging, "raiseExceptions", logging.raiseExceptions)
        logging.raiseExceptions = False
        stream: Any = _LoggedStream(sys.stdout, files)
        stack.enter_context(redirect_stdout(stream))
        # This restores the function and the filters.
        stack.enter_context(warnings.catch_warnings())
        show = warnings.showwarning

        def show_and_log(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
            show(message, category, *place, **options)
            _write(files, f"{category.__name__}: {message}\n")

        warnings.showwarning = show_and_log
        for text in _SILENT_WARNINGS:
            warnings.filterwarnings("ignore", text)
        try:
            yield
        except Exception:
            # Hydra or `run_with_hints` prints the error after this function has ended.
            _write(files, traceback.format_exc())
            raise


def _is_informative(record: logging.LogRecord) -> bool:
    return _SILENT.search(record.getMessage()) is None


def _is_for_console(record: logging.LogRecord) -> bool:
    return record.name != _EPOCH_LINES


def _write(files: list[logging.FileHandler], text: str) -> None:
    """Write text to log files between two records."""
    for file in files:
        try:
            stream: Any = file.stream
            # The handler opens its stream with the first record.
            if stream is not None:
                # Another thread may be writing a record.
                with file.lock:  # type: ignore[union-attr] # every handler has one
                    stream.write(text)
                    stream.flush()
        except (OSError, ValueError):  # the disk is full, or the file was closed
            continue


class _LoggedStream:
    """A stream that copies text to log files, except for frames of a progress bar."""

    def __init__(self, stream: Any, files: list[logging.FileHandler]) -> None:
        self._stream = stream
        self._files = files

    def write(self, text: str) -> int:
        """Write text."""
        plain = _STYLE.sub("", text)
        # Text that moves the cursor is a frame of a progress bar.
        if not {"\x1b", "\r"} & {*plain}:
            _write(self._files, plain)
        written: int = self._stream.write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
