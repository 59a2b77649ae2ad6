"""The process of `ObjectServer`: folders of this host as S3 buckets, over asyncio and the standard library alone.

A parent process writes one JSON object a line to its standard input and reads one from its standard output. The server
ends when its standard input closes, so that it never outlives a killed test.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import struct
import sys
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.etree import ElementTree

from tests.support.object_store import Failure, FaultKind, ObjectStore, Reply, Request

MAX_BODY = 1 << 30


class Connection(asyncio.Protocol):
    """One connection; its requests are answered one after the other."""

    def __init__(self, server: ObjectStore) -> None:
        self.server = server
        self.transport: Any = None
        self.buffer = bytearray()
        self.busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.server.counts["connections"] += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self.start()

    def start(self) -> None:
        """Begin with the next request, if it is complete."""
        if self.busy or self.transport is None:
            return
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        first, *lines = self.buffer[:end].decode("latin1").split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        length = int(headers.get("content-length", 0))
        if length > MAX_BODY or "transfer-encoding" in headers:
            self.transport.abort()
            return
        if len(self.buffer) < end + 4 + length:
            if headers.get("expect") == "100-continue" and len(self.buffer) == end + 4:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return
        body = bytes(self.buffer[end + 4 : end + 4 + length])
        del self.buffer[: end + 4 + length]
        method, target, _ = first.split(" ", 2)
        path, _, query = target.partition("?")
        values = {name: value[0] for name, value in parse_qs(query, keep_blank_values=True).items()} if query else {}
        self.busy = True
        self.server.num_open += 1
        self.server.counts["most_open"] = max(self.server.counts["most_open"], self.server.num_open)
        request = Request(method, unquote(path), values, headers, body)
        if self.server.delay_s:
            asyncio.get_running_loop().call_later(self.server.delay_s, self.reply, request)
        else:
            self.reply(request)

    def reply(self, request: Request) -> None:
        self.server.num_open -= 1
        self.busy = False
        if self.transport is None:
            return
        counts = self.server.counts
        counts["requests"] += 1
        counts[kind_of(request)] += 1
        counts["bytes_in"] += len(request.body)
        fault = self.server.draw_fault(request) if request.key and not request.query else None
        try:
            reply = self.server.answer(request, fault)
        except Failure as failure:
            reply = failure.reply
            counts[f"status_{reply.status}"] += 1
        except (OSError, ValueError, KeyError, ElementTree.ParseError) as error:
            reply = Failure(400, "InvalidRequest", repr(error)).reply
        self.send(request, reply, fault)
        self.start()

    def send(self, request: Request, reply: Reply, fault: FaultKind | None) -> None:
        length = reply.length if reply.length >= 0 else len(reply.body)
        phrase = HTTPStatus(reply.status).phrase
        head = f"HTTP/1.1 {reply.status} {phrase}\r\nContent-Length: {length}\r\n{reply.headers}\r\n".encode("latin1")
        body = b"" if request.method == "HEAD" else reply.body
        broken = fault in (FaultKind.CUT, FaultKind.SHORT)
        if broken:
            body = body[: len(body) // 2]
        self.server.counts["bytes_out"] += len(body)
        self.transport.write(head + body)
        if not broken:
            return
        if fault is FaultKind.CUT:
            # Without lingering, closing resets the connection.
            linger = struct.pack("ii", 1, 0)
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.transport.close()


def kind_of(request: Request) -> str:
    """Return the name under which a request is counted."""
    if request.method == "GET":
        if not request.key:
            return "list"
        return "get_range" if "range" in request.headers else "get"
    if request.method == "PUT" and "uploadId" in request.query:
        return "put_part"
    return request.method.lower()


def say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


async def main(root: Path) -> None:
    """Serve until the standard input closes."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    server = ObjectStore(root)
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: Connection(server), "127.0.0.1", 0, backlog=1024)
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    say(listener.sockets[0].getsockname()[1])
    while line := await commands.readline():
        say(server.configure(json.loads(line)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
