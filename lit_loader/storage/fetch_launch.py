"""Starts the fetch process of a host as a fresh interpreter, and says why one has ended."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from lit_loader.errors import StorageError
from lit_loader.foundation.byte_sizes import byte_count
from lit_loader.foundation.escaping import printable
from lit_loader.foundation.extras import require
from lit_loader.storage.protocol import EXIT_FAILED, EXIT_LOCKED
from lit_loader.storage.settings import StorageSettings, hide_secrets

__all__ = ["FetchLaunch"]

_MAX_REASON_BYTES: Final = 2000


class FetchLaunch:
    """Start a fetch process.

    Owns: a thread that waits for the end of the process, which would remain as a zombie otherwise, and the file with
        its messages until then.

    Args:
        folder: Folder of the cache, with its catalog.
        settings: How to reach the store.
        url: URL of the store for messages.

    Raises:
        ImportError: If obstore is not installed.
        OSError: If no process can be started.
    """

    def __init__(self, folder: Path, settings: StorageSettings, url: str) -> None:
        # Training processes must not import it, see `lit_loader.storage`.
        if find_spec("obstore") is None:
            require("obstore", "storage")
        self._url = url
        self._settings = settings
        data = settings.to_json() | {"cache_budget": byte_count(settings.cache_budget)}
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115 # closed by `close`
        self._exit_code: int | None = None
        pid = _spawn(folder, (json.dumps(data) + "\n").encode(), self._messages.fileno())
        threading.Thread(target=self._wait, args=(pid,), name="lit_loader_fetch_end", daemon=True).start()

    @property
    def lost_election(self) -> bool:
        """True if the process has ended because another one has the lock of the folder."""
        return self._exit_code == EXIT_LOCKED

    def check(self) -> None:
        """Check that the process has not failed.

        Raises:
            StorageError: It has failed; the message contains its reason.
        """
        code = self._exit_code
        if code in (None, EXIT_LOCKED):
            return
        text = self._last_messages()
        if code != EXIT_FAILED:
            reason = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            text = f"the fetch process {reason}: {text or 'it wrote no message'}"
        raise StorageError(text if self._url in text else f"{self._url}: {text}")

    def _wait(self, pid: int) -> None:
        try:
            _, status = os.waitpid(pid, 0)
        except ChildProcessError:
            # Other code of this program has waited for it. Without an exit code, another process may be started.
            self._exit_code = EXIT_LOCKED
        else:
            self._exit_code = os.waitstatus_to_exitcode(status)

    def _last_messages(self) -> str:
        file = self._messages
        file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_REASON_BYTES))
        return printable(hide_secrets(file.read().decode(errors="replace"), self._settings.options)).strip()

    def close(self) -> None:
        """Close the file with the messages of the process."""
        self._messages.close()


def _spawn(folder: Path, line: bytes, output: int) -> int:
    """Start the process with a line of input; return its process id."""
    # The process imports this package even if only the caller's sys.path leads to it.
    package_path = str(Path(__file__).parents[2])
    python_path = os.pathsep.join(filter(None, [package_path, os.environ.get("PYTHONPATH")]))
    # -P: a file of the current folder does not replace a module of Python.
    arguments = [sys.executable, "-P", "-m", "lit_loader.storage.fetch_process", str(folder)]
    # A backtrace of Rust would show arguments.
    environment = os.environ | {"PYTHONPATH": python_path, "RUST_BACKTRACE": "0"}
    receiver, sender = os.pipe()
    try:
        # Not subprocess, which waits until all copies of a pipe are closed. This thread may run while another one forks
        # workers. They would have a copy, and wait for the fetch process.
        pid = os.posix_spawn(
            sys.executable,
            arguments,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, receiver, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
            ],
            # Ctrl-C is for the training processes, and other runs may use the fetch process as well.
            setsid=True,
        )
        # The process may have ended.
        with suppress(BrokenPipeError), open(sender, "wb", closefd=False) as stdin:
            stdin.write(line)
    finally:
        os.close(receiver)
        os.close(sender)
    return pid
