"""An S3 server on this host with delays, faults and counters."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.support.object_store import FaultKind, object_draw

__all__ = ["Fault", "FaultKind", "ObjectServer"]


class Fault(NamedTuple):
    """A fault of requests for objects.

    Attributes:
        kind: Kind of the fault.
        share: Share of the requests, or of the objects for the kinds that are properties of objects.
        keys: Regular expression that is searched for in the keys.
        limit: Largest number of requests with the fault, or None.
    """

    kind: FaultKind
    share: float = 1.0
    keys: str = ""
    limit: int | None = None


class ObjectServer:
    """A server of a folder as S3 bucket, over plain HTTP in path style, for any signature or none.

    Use it as a context manager. Objects are the files in `folder`, which tests may write and delete directly.

    Args:
        root: Folder of the server, with a subfolder for each bucket.
        bucket: Name of the bucket of `folder` and `url`; a test may assign another one.
        delay_ms: Time before each reply.
    """

    def __init__(self, root: Path, *, bucket: str = "bucket", delay_ms: float = 0) -> None:
        self.root = root
        self.bucket = bucket
        self._delay_ms = delay_ms
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str]

    @property
    def folder(self) -> Path:
        """Folder of the bucket, created if missing."""
        folder = self.root / self.bucket
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-m", "tests.support.object_server_process", str(self.root)],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.set(delay_ms=self._delay_ms)
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, str]:
        """Options of obstore's ``S3Store`` that reach the server."""
        return {"endpoint": self.endpoint, "region": "us-east-1", "skip_signature": "true", "allow_http": "true"}

    def url(self, prefix: str = "") -> str:
        """Return the URL of a folder of the bucket."""
        return f"s3://{self.bucket}/{prefix}".rstrip("/")

    def set(self, **settings: Any) -> Counter[str]:
        """Change settings, and return the counters from before.

        Args:
            **settings: ``delay_ms``, time before each reply; ``token``, the value that each request must have as
                ``x-amz-security-token``, else it is refused as expired, empty for none; ``reset=True`` to count anew.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(settings) + "\n")
            self._process.stdin.flush()
            return Counter(json.loads(self._process.stdout.readline()))

    def set_faults(self, *faults: Fault) -> None:
        """Replace all faults."""
        unlimited = sys.maxsize
        rows = [(kind, share, keys, unlimited if limit is None else limit) for kind, share, keys, limit in faults]
        self.set(faults=rows)

    def is_struck(self, fault: Fault, key: str) -> bool:
        """Return True if a fault that is a property of objects strikes an object of the bucket."""
        return re.search(fault.keys, key) is not None and object_draw(fault.kind, f"{self.bucket}/{key}") < fault.share

    @property
    def counts(self) -> Counter[str]:
        """Number of requests of each kind, of faults of each kind, and of bytes in and out, since the last reset."""
        return self.set()
