"""Run a job on a store in a fresh interpreter: list, download, read headers.

NOTE [Jobs]
    Training processes never import obstore, because its runtime does not survive a fork. So each job runs in a process
    of its own. It gets settings and request as one line of JSON on standard input: command lines and environments
    of processes can be read by others. It answers with lines of JSON on standard output, and with files. It ends when
    its standard input is closed, so it does not outlive a parent that was killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

from lit_loader.errors import LitLoaderError, SettingError, StorageError, UnsafePathError
from lit_loader.foundation.interrupts import end_process
from lit_loader.storage.settings import StorageSettings, hide_secrets

__all__ = ["ReportProgress", "run_job"]

ReportProgress: TypeAlias = Callable[[int, int | None], None]
"""Called with the number of finished items, and the number of all items, or None if it is unknown."""

_JOBS: Final = {
    "download": ("lit_loader.storage.downloading", "download", "Downloading annotations"),
    "headers": ("lit_loader.storage.downloading", "headers", "Reading image headers"),
    "tar_samples": ("lit_loader.storage.packing_jobs", "tar_samples", "Reading headers of tar files"),
    "upload": ("lit_loader.storage.packing_jobs", "upload", "Uploading"),
    "verify": ("lit_loader.storage.packing_jobs", "verify", "Comparing shards"),
    "list": ("lit_loader.storage.downloading", "list_objects", "Listing objects"),
}
"""Module, function and progress text of each job; a function gets settings, request and `ReportProgress`."""

_ERRORS: Final[dict[str, type[LitLoaderError]]] = {"StorageError": StorageError, "UnsafePathError": UnsafePathError}
_MAX_STDERR_BYTES: Final = 2000


def run_job(name: str, settings: StorageSettings, request: Mapping[str, Any], *, progress: bool) -> dict[str, Any]:
    """Run a job in a fresh interpreter, and return its result.

    Args:
        name: One of the keys of ``_JOBS``.
        settings: The store.
        request: Arguments of the job, as JSON data; see the function of the job.
        progress: Whether to draw a progress bar if standard error is a terminal.

    Raises:
        ImportError: If the extra ``storage`` is not installed.
        SettingError: If an option of the store is unknown or has a wrong value.
        StorageError: If the store cannot be reached or refuses a request.
    """
    line = json.dumps({"settings": settings.to_json(), "request": dict(request)}).encode() + b"\n"
    bar = _bar(_JOBS[name][2], progress)
    with tempfile.TemporaryFile() as stderr, _process(name, stderr) as process, bar as report:
        requests: Any = process.stdin
        answers: Any = process.stdout
        # If the process has ended already, the code below says why.
        with suppress(BrokenPipeError):
            requests.write(line)
            requests.flush()
        for answer in map(json.loads, answers):
            if "progress" in answer:
                report(*answer["progress"])
            elif "error" in answer:
                raise _decode_error(answer["error"])
            else:
                result: dict[str, Any] = answer["result"]
                return result
        code = process.wait()
        stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _MAX_STDERR_BYTES))
        text = hide_secrets(stderr.read().decode(errors="replace").strip(), settings.options)
    reason = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    raise StorageError(f"{settings.url}: the process of the job {name!r} {reason}: {text}")


@contextmanager
def _process(name: str, stderr: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Start the process of a job; at the end of the block it is ended, if it still runs."""
    # The process imports this package even if only the caller's sys.path leads to it.
    package_path = str(Path(__file__).parents[2])
    python_path = os.pathsep.join(filter(None, [package_path, os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        # -P: a file of the current folder does not replace a module of Python.
        [sys.executable, "-P", "-m", "lit_loader.storage.jobs", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        # A backtrace of Rust would show arguments.
        env=os.environ | {"PYTHONPATH": python_path, "RUST_BACKTRACE": "0"},
        # Ctrl-C is for the caller, which then ends the process.
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


@contextmanager
def _bar(description: str, progress: bool) -> Iterator[ReportProgress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not (progress and console.is_terminal)) as bar:
        task = bar.add_task(description, total=None)
        yield lambda count, total: bar.update(task, completed=count, total=total)


def _encode_error(error: BaseException, settings: StorageSettings) -> dict[str, Any]:
    clean = partial(hide_secrets, secrets=settings.options)
    if isinstance(error, SettingError):
        # The value may be a secret; its name says enough.
        return {"kind": "setting", "argument": error.argument, "rule": clean(error.rule), "remedy": clean(error.remedy)}
    if isinstance(error, ImportError):
        return {"kind": "import", "message": clean(str(error)), "name": error.name}
    if isinstance(error, LitLoaderError):
        texts = {"message": clean(error.problem), "remedy": clean(error.remedy)}
        return {"kind": type(error).__name__, "settings": error.settings, **texts}
    return {"kind": "other", "message": clean(f"{settings.url}: {type(error).__name__}: {error}")}


def _decode_error(error: Mapping[str, Any]) -> Exception:
    kind = error["kind"]
    if kind == "setting":
        return SettingError(error["argument"], ..., error["rule"], error["remedy"])
    if kind == "import":
        return ImportError(error["message"], name=error["name"])
    settings = {name: error[name] for name in ("remedy", "settings") if name in error}
    return _ERRORS.get(kind, StorageError)(error["message"], **settings)


# -- in the process of a job --------------------------------------------------------------------------------------


def _exit_with_parent() -> None:
    """End this process when the parent closes standard input, or is killed."""
    sys.stdin.buffer.read()
    end_process(1)


def _answer(stream: IO[bytes], answer: Mapping[str, Any]) -> None:
    stream.write(json.dumps(answer).encode() + b"\n")
    stream.flush()


def _main(name: str) -> None:
    """Run a job, and write its answers to standard output."""
    # Nothing else may write between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    message = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    settings = StorageSettings.from_json(message["settings"])
    module, function, _ = _JOBS[name]
    try:
        job = getattr(import_module(module), function)
        result = job(settings, message["request"], lambda *counts: _answer(answers, {"progress": counts}))
        _answer(answers, {"result": result})
    # Panics of obstore are not of the class Exception.
    except BaseException as error:
        _answer(answers, {"error": _encode_error(error, settings)})
    # Requests on other threads may still wait for the store.
    end_process(0)


if __name__ == "__main__":
    _main(sys.argv[1])
