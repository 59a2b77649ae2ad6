"""Requests of the S3 protocol, answered from folders of this host, with faults."""

from __future__ import annotations

import os
import random
import re
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


class FaultKind(StrEnum):
    """Kinds of fault.

    Those from VANISHED on are properties of an object: the same objects have them until the faults are replaced. The
    others are drawn for each request.
    """

    UNAVAILABLE = "unavailable"  # 503 SlowDown
    ERROR = "error"  # 500 InternalError
    EXPIRED = "expired"  # 403 ExpiredToken
    CUT = "cut"  # the connection is reset in the middle of the body
    SHORT = "short"  # the connection is closed in the middle of the body
    VANISHED = "vanished"  # 404, though listings have the object
    CHANGED = "changed"  # another ETag and other bytes than in listings
    LONGER = "longer"  # one byte more than in listings, with the same ETag
    SHORTER = "shorter"  # half of the bytes that listings tell, with the same ETag


OF_OBJECTS = (FaultKind.VANISHED, FaultKind.CHANGED, FaultKind.LONGER, FaultKind.SHORTER)


class Request(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def bucket(self) -> str:
        return self.path.strip("/").partition("/")[0]

    @property
    def key(self) -> str:
        return self.path.lstrip("/").partition("/")[2]


class Reply(NamedTuple):
    status: int
    body: bytes = b""
    headers: str = ""
    length: int = -1  # for a reply to HEAD; -1 for the length of the body


class Failure(Exception):
    """A request that is answered with an S3 error."""

    def __init__(self, status: int, code: str, text: str = "") -> None:
        super().__init__(code)
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{escape(text or code)}</Message></Error>"
        self.reply = Reply(status, body.encode(), "Content-Type: application/xml\r\n")


@dataclass
class FaultState:
    """A fault, see `object_server.Fault`, and how many requests it may still strike."""

    kind: FaultKind
    share: float
    keys: str
    limit: int

    def strikes(self, request: Request, draws: random.Random) -> bool:
        if not re.search(self.keys, request.key):
            return False
        if self.kind in OF_OBJECTS:
            return object_draw(self.kind, request.path.strip("/")) < self.share
        return draws.random() < self.share


class ObjectStore:
    """State of the server: folder, faults and counters."""

    def __init__(self, root: Path) -> None:
        self.root = str(root.resolve())
        self.delay_s = 0.0
        self.token = ""
        self.faults: list[FaultState] = []
        self.counts: Counter[str] = Counter()
        self.num_open = 0
        self.draws = random.Random(0)
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.listings: dict[tuple[str, str], list[tuple[str, os.stat_result]]] = {}

    def configure(self, settings: dict[str, Any]) -> dict[str, int]:
        """Change settings that the parent sends, and return the counters from before."""
        counts = {**self.counts, "open": self.num_open}
        if "delay_ms" in settings:
            self.delay_s = settings["delay_ms"] / 1000
        self.token = settings.get("token", self.token)
        if "faults" in settings:
            self.faults = [FaultState(FaultKind(kind), *values) for kind, *values in settings["faults"]]
        if settings.get("reset"):
            self.counts.clear()
        return counts

    def draw_fault(self, request: Request) -> FaultKind | None:
        """Return the fault of a request for an object."""
        for fault in self.faults:
            if fault.limit > 0 and fault.strikes(request, self.draws):
                fault.limit -= 1
                self.counts[f"fault_{fault.kind}"] += 1
                return fault.kind
        return None

    def answer(self, request: Request, fault: FaultKind | None) -> Reply:
        """Return the reply to a request."""
        if self.token and request.headers.get("x-amz-security-token") != self.token:
            self.counts["refused_tokens"] += 1
            raise Failure(403, "ExpiredToken", "The provided token has expired.")
        if fault is FaultKind.UNAVAILABLE:
            raise Failure(503, "SlowDown", "Reduce your request rate.")
        if fault is FaultKind.ERROR:
            raise Failure(500, "InternalError")
        if fault is FaultKind.EXPIRED:
            raise Failure(403, "ExpiredToken", "The provided token has expired.")
        if request.method in ("GET", "HEAD"):
            if request.key or request.method == "HEAD":
                return self.read(request, fault)
            return self.list(request)
        actions: dict[str, Callable[[Request], Reply]] = {"PUT": self.put, "POST": self.post, "DELETE": self.delete}
        if request.method not in actions:
            raise Failure(405, "MethodNotAllowed")
        return actions[request.method](request)

    def file(self, path: str) -> str:
        """Return the file of an object; its path stays in the folder of the server."""
        file = os.path.normpath(f"{self.root}/{path}")
        if not file.startswith(self.root):
            raise Failure(400, "InvalidURI", path)
        return file

    def read(self, request: Request, fault: FaultKind | None) -> Reply:
        """Answer GET and HEAD of an object."""
        if fault is FaultKind.VANISHED:
            raise Failure(404, "NoSuchKey", "The specified key does not exist.")
        try:
            descriptor = os.open(self.file(request.path), os.O_RDONLY)
        except OSError:
            raise Failure(404, "NoSuchKey", "The specified key does not exist.") from None
        try:
            status = os.fstat(descriptor)
            if os.path.isdir(f"/proc/self/fd/{descriptor}"):
                if request.method == "HEAD" and not request.key:
                    return Reply(200)
                raise Failure(404, "NoSuchKey", "The specified key does not exist.")
            return self.read_file(request, fault, descriptor, status)
        finally:
            os.close(descriptor)

    def read_file(self, request: Request, fault: FaultKind | None, file: int, status: os.stat_result) -> Reply:
        etag = etag_of(status)
        size = status.st_size
        if fault is FaultKind.CHANGED:
            etag = f'"{blake2b(etag.encode(), digest_size=8).hexdigest()}"'
        elif fault is FaultKind.LONGER:
            size += 1
        elif fault is FaultKind.SHORTER:
            size //= 2
        if request.headers.get("if-match", etag) not in (etag, etag.strip('"'), "*"):
            raise Failure(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold")
        headers = (
            f"ETag: {etag}\r\nLast-Modified: {formatdate(status.st_mtime, usegmt=True)}\r\nAccept-Ranges: bytes\r\n"
        )
        first = 0
        last = size - 1
        code = 200
        if "range" in request.headers:
            first, last = byte_range(request.headers["range"], size)
            headers += f"Content-Range: bytes {first}-{last}/{size}\r\n"
            code = 206
        headers += "Content-Type: binary/octet-stream\r\n"
        if request.method == "HEAD":
            return Reply(code, b"", headers, last - first + 1)
        body = os.pread(file, last - first + 1, first).ljust(last - first + 1, b"\0")
        if fault is FaultKind.CHANGED:
            body = body[::-1]
        return Reply(code, body, headers)

    def list(self, request: Request) -> Reply:
        """Answer ListObjectsV2; a listing of several pages is the state at the first one."""
        if "location" in request.query:
            return Reply(200, f"<LocationConstraint {NAMESPACE}/>".encode())
        prefix = request.query.get("prefix", "")
        previous_key = request.query.get("continuation-token") or request.query.get("start-after") or ""
        snapshot = (request.bucket, prefix)
        if snapshot not in self.listings or "continuation-token" not in request.query:
            self.listings[snapshot] = list_objects(self.file(request.bucket), prefix)
        limit = min(1000, int(request.query.get("max-keys", 1000)))
        encode = quote if request.query.get("encoding-type") == "url" else escape
        entries, last = page(self.listings[snapshot], prefix, request.query.get("delimiter", ""), previous_key, limit)
        total = len(entries)
        body = [f"<Name>{request.bucket}</Name><Prefix>{encode(prefix)}</Prefix><KeyCount>{total}</KeyCount>"]
        body.append(f"<MaxKeys>{limit}</MaxKeys><IsTruncated>{'true' if last else 'false'}</IsTruncated>")
        if last:
            body.append(f"<NextContinuationToken>{escape(last)}</NextContinuationToken>")
        if encode is quote:
            body.append("<EncodingType>url</EncodingType>")
        for key, status in entries:
            if status is None:
                body.append(f"<CommonPrefixes><Prefix>{encode(key)}</Prefix></CommonPrefixes>")
            else:
                body.append(f"<Contents><Key>{encode(key)}</Key>{describe(status)}</Contents>")
        text = f"<?xml version='1.0' encoding='UTF-8'?><ListBucketResult {NAMESPACE}>{''.join(body)}</ListBucketResult>"
        return Reply(200, text.encode(), "Content-Type: application/xml\r\n")

    def put(self, request: Request) -> Reply:
        """Answer PutObject, CopyObject and UploadPart."""
        if "uploadId" in request.query:
            parts = self.upload(request)
            number = int(request.query["partNumber"])
            parts[number] = request.body
            return Reply(200, b"", f'ETag: "{number}-{len(request.body)}"\r\n')
        body = request.body
        if source := request.headers.get("x-amz-copy-source"):
            body = Path(self.file(unquote(source))).read_bytes()
        file = self.file(request.path)
        if request.headers.get("if-none-match") == "*" and os.path.exists(file):
            raise Failure(412, "PreconditionFailed")
        etag = write(file, body)
        if source:
            return Reply(200, f"<CopyObjectResult {NAMESPACE}><ETag>{escape(etag)}</ETag></CopyObjectResult>".encode())
        return Reply(200, b"", f"ETag: {etag}\r\n")

    def post(self, request: Request) -> Reply:
        """Answer CreateMultipartUpload, CompleteMultipartUpload and DeleteObjects."""
        if "delete" in request.query:
            keys = [element.text or "" for element in ElementTree.fromstring(request.body).iter() if is_key(element)]
            for key in keys:
                self.remove(f"{request.bucket}/{key}")
            deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            return Reply(200, f"<DeleteResult {NAMESPACE}>{deleted}</DeleteResult>".encode())
        place = f"<Bucket>{request.bucket}</Bucket><Key>{escape(request.key)}</Key>"
        if "uploads" in request.query:
            identifier = f"{self.draws.getrandbits(64):x}"
            self.uploads[identifier] = {}
            root = "InitiateMultipartUploadResult"
            return Reply(200, f"<{root} {NAMESPACE}>{place}<UploadId>{identifier}</UploadId></{root}>".encode())
        parts = self.upload(request)
        etag = write(self.file(request.path), b"".join(parts[number] for number in sorted(parts)))
        del self.uploads[request.query["uploadId"]]
        root = "CompleteMultipartUploadResult"
        return Reply(200, f"<{root} {NAMESPACE}>{place}<ETag>{escape(etag)}</ETag></{root}>".encode())

    def delete(self, request: Request) -> Reply:
        """Answer DeleteObject and AbortMultipartUpload."""
        if "uploadId" in request.query:
            self.uploads.pop(request.query["uploadId"], None)
        else:
            self.remove(request.path)
        return Reply(204)

    def upload(self, request: Request) -> dict[int, bytes]:
        """Return the parts of an upload so far."""
        try:
            return self.uploads[request.query["uploadId"]]
        except KeyError:
            raise Failure(404, "NoSuchUpload") from None

    def remove(self, path: str) -> None:
        Path(self.file(path)).unlink(missing_ok=True)


def object_draw(kind: FaultKind, path: str) -> float:
    """Return a number in [0, 1) that is the same for every request of an object."""
    digest = blake2b(path.encode(), digest_size=8, person=kind.encode()).digest()
    return int.from_bytes(digest) / 2**64


def etag_of(status: os.stat_result) -> str:
    return f'"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"'


def describe(status: os.stat_result) -> str:
    """Return the elements of a listed object after its key."""
    stamp = datetime.fromtimestamp(status.st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    etag = escape(etag_of(status), {'"': "&quot;"})
    return f"<LastModified>{stamp}</LastModified><ETag>{etag}</ETag><Size>{status.st_size}</Size>"


def byte_range(text: str, size: int) -> tuple[int, int]:
    """Return the first and last byte of a Range header."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", text)
    if not match or match.groups() == ("", ""):
        raise Failure(400, "InvalidRange", text)
    start, end = match.groups()
    if not start:
        return max(0, size - int(end)), size - 1
    if int(start) >= size:
        raise Failure(416, "InvalidRange", "The requested range is not satisfiable")
    return int(start), min(size - 1, int(end) if end else size - 1)


def list_objects(folder: str, prefix: str) -> list[tuple[str, os.stat_result]]:
    """Return the keys of a bucket that begin with a prefix, sorted by their bytes, each with its status."""
    within = os.path.dirname(prefix)
    objects = []
    for parent, _, names in os.walk(os.path.join(folder, within)):
        for name in names:
            key = os.path.relpath(os.path.join(parent, name), folder)
            if key.startswith(prefix):
                objects.append((key, os.stat(os.path.join(parent, name))))
    return sorted(objects, key=lambda entry: os.fsencode(entry[0]))


def page(
    objects: list[tuple[str, os.stat_result]], prefix: str, delimiter: str, previous_key: str, limit: int
) -> tuple[list[tuple[str, os.stat_result | None]], str]:
    """Return objects and common prefixes after a key, and the token of the next page, empty at the end."""
    entries: list[tuple[str, os.stat_result | None]] = []
    first = bisect_right(objects, os.fsencode(previous_key), key=lambda entry: os.fsencode(entry[0]))
    for key, status in objects[first:]:
        head, separator, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
        name = prefix + head + separator if separator else key
        if separator and (name == previous_key or (entries and name == entries[-1][0])):
            continue
        if len(entries) == limit:
            return entries, entries[-1][0]
        entries.append((name, None if separator else status))
    return entries, ""


def write(file: str, body: bytes) -> str:
    """Replace a file at once, and return its ETag."""
    os.makedirs(os.path.dirname(file), exist_ok=True)
    # A new file and not the old one with new bytes: readers of the old one read it to its end.
    descriptor, name = tempfile.mkstemp(dir=os.path.dirname(file), prefix=".upload-")
    with open(descriptor, "wb") as stream:
        stream.write(body)
    os.replace(name, file)
    return etag_of(os.stat(file))


def is_key(element: ElementTree.Element) -> bool:
    return element.tag.rpartition("}")[2] == "Key"
