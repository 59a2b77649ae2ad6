"""Starts the fetch process of a host as a fresh interpreter, and says why one has ended."""

from __future__ import annotations

import json
import os
import subprocess
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
        self._process = _popen(folder, self._messages.fileno())
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as stdin:
            # A line, because workers that are forked meanwhile may keep the pipe open.
            stdin.write(json.dumps(data).encode() + b"\n")
        threading.Thread(target=self._process.wait, name="lit_loader_fetch_end", daemon=True).start()

    @property
    def lost_election(self) -> bool:
        """True if the process has ended because another one has the lock of the folder."""
        return self._process.poll() == EXIT_LOCKED

    def check(self) -> None:
        """Check that the process has not failed.

        Raises:
            StorageError: It has failed; the message contains its reason.
        """
        code = self._process.poll()
        if code in (None, EXIT_LOCKED):
            return
        text = self._last_messages()
        if code != EXIT_FAILED:
            reason = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            text = f"the fetch process {reason}: {text or 'it wrote no message'}"
        raise StorageError(text if self._url in text else f"{self._url}: {text}")

    def _last_messages(self) -> str:
        file = self._messages
        file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_REASON_BYTES))
        return printable(hide_secrets(file.read().decode(errors="replace"), self._settings.options)).strip()

    def close(self) -> None:
        """Close the file with the messages of the process."""
        self._messages.close()


def _popen(folder: Path, stderr: int) -> subprocess.Popen[bytes]:
    # The process imports this package even if only the caller's sys.path leads to it.
    package_path = str(Path(__file__).parents[2])
    python_path = os.pathsep.join(filter(None, [package_path, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        # -P: a file of the current folder does not replace a module of Python.
        [sys.executable, "-P", "-m", "lit_loader.storage.fetch_process", str(folder)],
        stdin=subprocess.PIPE,
        stdout=stderr,
        stderr=stderr,
        # A backtrace of Rust would show arguments.
        env=os.environ | {"PYTHONPATH": python_path, "RUST_BACKTRACE": "0"},
        # Ctrl-C is for the training processes, and other runs may use the fetch process as well.
        start_new_session=True,
    )
