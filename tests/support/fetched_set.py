"""A set of generated images in a store, with a cache, a fetch process and a client that speaks its protocol."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from lit_loader.storage.cache_file import CacheFile
from lit_loader.storage.catalog import Catalog
from lit_loader.storage.greeting import Answer, Greeting
from lit_loader.storage.protocol import MessageKind, Messages, State, connect, encode_message, encode_request
from lit_loader.storage.settings import StorageSettings

TIMEOUT_S = 60


def random_images(num_images: int, *, min_bytes: int = 1, max_bytes: int = 9000) -> list[bytes]:
    generator = random.Random(num_images)
    return [generator.randbytes(generator.randint(min_bytes, max_bytes)) for _ in range(num_images)]


def catalog_of(
    lengths: Sequence[int], *, per_object: int = 1, gap: int = 512, versions: Sequence[str] | None = None
) -> Catalog:
    """Return the catalog of images in objects of ``per_object`` images each, with a gap before each image.

    Raw objects, with one image each, have no gap.
    """
    num_images = len(lengths)
    gap = gap if per_object > 1 else 0
    num_objects = -(-num_images // per_object)
    starts = np.zeros(num_images, dtype=np.int64)
    for slot in range(num_images):
        is_first = slot % per_object == 0
        starts[slot] = gap + (0 if is_first else starts[slot - 1] + lengths[slot - 1])
    return Catalog(
        root="test",
        objects=[f"set/{index}.bin" for index in range(num_objects)],
        versions=[""] * num_objects if versions is None else versions,
        object_of=(np.arange(num_images) // per_object).astype(np.int32),
        starts=starts,
        lengths=np.array(lengths, dtype=np.int64),
        path_hashes=Catalog.hash_paths([f"{slot}.jpg" for slot in range(num_images)]),
    )


class FetchedSet:
    """Images as objects in a folder, and the cache of them. Use it as a context manager.

    Args:
        root: Folder of the objects; a server may show it as a bucket.
        images: Their bytes.
        per_object: Number of images in each object.
        cache_folder: Folder of the cache.
    """

    def __init__(self, root: Path, images: Sequence[bytes], cache_folder: Path, *, per_object: int = 1) -> None:
        self.root = root
        self.images = images
        self.folder = cache_folder
        self.catalog = catalog_of([len(image) for image in images], per_object=per_object)
        (root / "set").mkdir(parents=True)
        for index, name in enumerate(self.catalog.objects):
            slots = range(index * per_object, min((index + 1) * per_object, len(images)))
            data = bytearray()
            for slot in slots:
                data += bytes(int(self.catalog.starts[slot]) - len(data)) + images[slot]
            (root / name).write_bytes(data)
        self.folder.mkdir(mode=0o700)
        self.catalog.save(self.folder / "catalog.arrow")
        self.cache = CacheFile(self.folder)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._sockets: list[socket.socket] = []
        self._begun: set[tuple[socket.socket, int]] = set()
        self._window = 0
        self.url = f"file://{root}"
        self.options: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()
        for process in self._processes:
            process.kill()
            process.communicate()

    def save_versions(self, versions: Sequence[str]) -> None:
        """Let the catalog have the ETags of the objects."""
        self.catalog = replace(self.catalog, versions=versions)
        self.catalog.save(self.folder / "catalog.arrow")

    def start(
        self, *, budget: Any = 1 << 30, window: int = 16, num_connections: int = 4, prelude: str = ""
    ) -> subprocess.Popen[bytes]:
        """Start a fetch process, which executes a prelude first."""
        self._window = window
        imports = "import errno, os, sys; from pathlib import Path; from lit_loader.storage import fetch_process\n"
        main = "\nos._exit(fetch_process._main(Path(sys.argv[1])))"
        process = subprocess.Popen(
            [sys.executable, "-c", imports + prelude + main, str(self.folder)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._processes.append(process)
        settings = {
            "url": self.url,
            "options": self.options,
            "cache_budget": budget,
            "window": window,
            "num_connections": num_connections,
        }
        assert process.stdin is not None
        process.stdin.write(json.dumps(settings).encode())
        process.stdin.close()
        process.stdin = None
        return process

    def connect(self) -> socket.socket:
        """Wait until a fetch process listens, and return a connection for `send`."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                control = connect(self.folder, "control", socket.SOCK_STREAM)
                requests = connect(self.folder, "requests", socket.SOCK_DGRAM)
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        control.settimeout(TIMEOUT_S)
        self._sockets += [control, requests]
        self._requests = requests
        return control

    def disconnect(self) -> None:
        for connection in self._sockets:
            connection.close()
        self._sockets.clear()

    def extend(self, control: socket.socket, slots: Sequence[int], stream: int = 0) -> None:
        if (control, stream) not in self._begun:
            self._begun.add((control, stream))
            control.sendall(encode_message(MessageKind.BEGIN, stream, self._window.to_bytes(8, "little")))
        control.sendall(encode_message(MessageKind.EXTEND, stream, np.array(slots, dtype=np.int32)))

    def deliver(self, control: socket.socket, delivered: int, stream: int = 0) -> None:
        control.sendall(encode_message(MessageKind.DELIVERED, stream, delivered.to_bytes(8, "little")))

    def greet(self, control: socket.socket, settings: StorageSettings) -> Answer:
        return Answer.decode(self._ask(control, MessageKind.HELLO, Greeting.of(settings).encode()))

    def stats(self, control: socket.socket) -> dict[str, Any]:
        return json.loads(self._ask(control, MessageKind.STATS))

    def _ask(self, control: socket.socket, kind: MessageKind, payload: bytes = b"") -> bytes:
        control.sendall(encode_message(kind, 0, payload))
        messages = Messages()
        while True:
            data = control.recv(1 << 16)
            if not data:
                raise ConnectionError("the fetch process has ended")
            for message in messages.feed(data):
                return message.payload

    def request(self, slot: int, *, forget: bool = False) -> None:
        self._requests.send(encode_request(slot, forget=forget))

    def wait_for(self, slot: int, *states: State, request: bool = False) -> State:
        """Wait until an image has one of the states, READY or FAILED by default."""
        deadline = time.monotonic() + TIMEOUT_S
        next_request = 0.0
        while (state := self.cache.state(slot)) not in (states or (State.READY, State.FAILED)):
            assert time.monotonic() < deadline, f"image {slot} is {state!r}"
            if request and state == State.ABSENT and time.monotonic() >= next_request:
                self.request(slot)
                next_request = time.monotonic() + 0.1
            time.sleep(0.001)
        return state

    def read(self, slot: int) -> bytes:
        """Return the bytes of an image as a reader would, with requests."""
        while True:
            state = self.wait_for(slot, request=True)
            assert state == State.READY, self.cache.error_text(slot)
            data = self.cache.try_read(slot)
            if data is not None:
                return data
