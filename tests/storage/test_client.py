"""Guarantee: one fetch process serves a host, its failures are one clear error, and nothing remains after it."""

from __future__ import annotations

import fcntl
import os
import pickle
import resource
import signal
import socket
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from importlib.util import find_spec
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import pytest

from lit_loader.errors import CacheError, ImageError, StorageError
from lit_loader.storage import fetch_launch, fetch_link, images, protocol
from lit_loader.storage.cache_file import CacheFile
from lit_loader.storage.fetch_launch import FetchLaunch
from lit_loader.storage.fetch_link import FetchLink
from lit_loader.storage.greeting import Answer
from lit_loader.storage.protocol import Holder, MessageKind, Messages, State, encode_message, socket_address
from tests.support.forks import exit_code_of_fork
from tests.support.stored_sets import closing_store, draw_images, fetch_processes, remote_images

# Not by importorskip, because obstore must not be imported where tests fork.
needs_obstore = pytest.mark.skipif(find_spec("obstore") is None, reason="the extra storage is not installed")


@pytest.fixture
def folder(tmp_path):
    draw_images(tmp_path / "set", 6)
    return tmp_path


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A folder with a store that is connected to a fetch process."""
    folder = tmp_path_factory.mktemp("shared")
    draw_images(folder / "set", 6)
    with closing_store(store_of(folder)) as store:
        store.read("000.png")
        yield folder, store


def store_of(folder, **settings):
    names = sorted(path.name for path in (folder / "set").iterdir())
    return remote_images(folder / "set", names, folder / "cache", **settings)


class FakeFetchProcess:
    """Receives the messages to a fetch process, and answers to greetings only."""

    answer = Answer()

    def __init__(self, folder):
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with socket_address(folder, "control") as address:
            self._listener.bind(address)
        self._listener.listen()
        self._connections = SimpleQueue()
        self._acceptor = threading.Thread(target=self._accept)
        self._acceptor.start()
        self._connection = None
        self._messages = deque()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        # Unlike a mere close, it wakes the thread.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        self.drop()
        while not self._connections.empty():
            self._connections.get().close()

    def _accept(self):
        """Greet clients, which wait for it."""
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.settimeout(20)
                connection.sendall(encode_message(MessageKind.HELLO, -1, self.answer.encode()))
                self._connections.put(connection)

    def next(self, count):
        """Return the kinds and contents of the next messages, fewer if the client disconnects."""
        if self._connection is None:
            self._connection = self._connections.get(timeout=20)
            self._decoder = Messages()
        while len(self._messages) < count and (data := self._connection.recv(4096)):
            self._messages += self._decoder.feed(data)
            # Each connection begins with one.
            self._messages = deque(message for message in self._messages if message.kind is not MessageKind.HELLO)
        messages = [self._messages.popleft() for _ in range(min(count, len(self._messages)))]
        return [(message.kind.name, self._content(message)) for message in messages]

    def drop(self):
        """Close the connection, as a process that is killed."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    @staticmethod
    def _content(message):
        if message.kind in (MessageKind.DELIVERED, MessageKind.BEGIN):
            return int.from_bytes(message.payload, "little")
        return np.frombuffer(message.payload, dtype="<i4").tolist()


@needs_obstore
def test_clients_share_a_fetch_process(shared):
    folder, first = shared
    second = store_of(folder)
    assert first.read("003.png") == (folder / "set/003.png").read_bytes()
    assert second.stats()["pid"] == first.stats()["pid"]
    assert [process.pid for process in fetch_processes(first.folder)] == [first.stats()["pid"]]
    # The second store finds the image.
    assert second.peek("003.png") is not None
    second.close()


@needs_obstore
def test_clients_that_start_together_elect_one_fetch_process(folder):
    stores = [store_of(folder) for _ in range(2)]
    threads = [threading.Thread(target=store.start) for store in stores]
    with closing_store(stores[0]), closing_store(stores[1]):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({store.stats()["pid"] for store in stores}) == 1


@needs_obstore
def test_forked_process_reads_without_the_connection_of_its_parent(shared):
    folder, store = shared
    expected = (folder / "set/002.png").read_bytes()
    assert exit_code_of_fork(lambda: store.read("002.png") == expected) == 0

    def read_with_own_client():
        store.start()
        stream = store.open_stream()
        stream.begin(iter([np.arange(5, dtype=np.int32)]))
        data = store.read("001.png")
        store.close()
        return data == (folder / "set/001.png").read_bytes()

    assert exit_code_of_fork(read_with_own_client) == 0
    # The connection of the parent is still open.
    assert store.stats()["failed_images"] == 0


@needs_obstore
def test_pickled_copy_reads_and_has_no_credentials(shared):
    folder, store = shared
    data = pickle.dumps(store_of(folder, options={"secret_access_key": "SECRET"}))
    assert b"SECRET" not in data
    copy = pickle.loads(data)
    assert copy.read("004.png") == (folder / "set/004.png").read_bytes()
    assert copy.stats()["pid"] == store.stats()["pid"]
    copy.close()


def test_pickled_copy_without_fetch_process_names_the_log(folder, monkeypatch):
    monkeypatch.setattr(images, "_MAX_SILENCE_S", 0.1)
    copy = pickle.loads(pickle.dumps(store_of(folder)))
    # Of a process that was stopped: it takes requests, and does nothing.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as requests, socket_address(copy.folder, "requests") as place:
        requests.bind(place)
        with pytest.raises(ImageError, match=r"set/004\.png: no fetch process works"):
            copy.read("004.png")
    with pytest.raises(ImageError, match=r"set/004\.png: no fetch process works for .*; see its messages in .*log"):
        copy.read("004.png")
    with pytest.raises(StorageError, match="no credentials"):
        copy.open_stream()


@needs_obstore
def test_unknown_option_is_one_error_of_the_training_process(folder):
    store = store_of(folder, options={"secret_access_kee": "SECRET"})
    with pytest.raises(StorageError, match="secret_access_kee") as caught:
        store.start()
    assert "SECRET" not in str(caught.value)


def test_missing_obstore_is_an_error_with_the_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ImportError, match=r"lit-loader\[storage\]"):
        store_of(folder).read("004.png")


@needs_obstore
def test_fetch_process_that_ends_at_once_is_an_error_with_its_reason(folder):
    with pytest.raises(StorageError, match="cache_budget=1 "):
        store_of(folder, cache_budget=1).start()


@needs_obstore
def test_missing_object_is_an_error_until_it_is_there_again(shared):
    folder, store = shared
    (folder / "set/005.png").rename(folder / "away")
    with pytest.raises(ImageError, match=r"file://.*/set/005\.png: "):
        store.read("005.png")
    stream = store.open_stream()
    stream.begin(iter([np.array([5], dtype=np.int32)]))
    while CacheFile(store.folder).state(5) is not State.FAILED:
        time.sleep(0.001)
    stream.close()
    (folder / "away").rename(folder / "set/005.png")
    # At once: a failure while it was read ahead is not the answer to a later read.
    assert store.read("005.png") == (folder / "set/005.png").read_bytes()


def test_image_that_is_not_in_the_catalog_is_an_error(folder):
    store = pickle.loads(pickle.dumps(store_of(folder)))
    with pytest.raises(ImageError, match=r"new\\x1b\.png is not in the catalog of file://"):
        store.read("new\x1b.png")


def test_images_of_two_stores_are_no_copies_because_of_their_slots(folder, tmp_path):
    draw_images(tmp_path / "other" / "set", 6)
    keys = {store_of(root).copy_key("003.png") for root in (folder, tmp_path / "other")}
    assert len(keys) == 2


def test_cache_is_accessible_only_to_the_user(folder):
    store = pickle.loads(pickle.dumps(store_of(folder)))
    assert store.folder.stat().st_mode & 0o77 == 0
    assert (store.folder / "catalog.arrow").stat().st_mode & 0o77 == 0


def test_cache_folder_that_cannot_be_written_is_an_error(folder):
    (folder / "cache").write_text("a file")
    with pytest.raises(CacheError, match="cache_dir"):
        store_of(folder).start()


@needs_obstore
def test_failed_start_makes_the_folder_and_has_its_reason_if_sigchld_is_ignored(folder, monkeypatch):
    store = store_of(folder)
    script = ["sh", "-c", "echo a reason >&2"]

    def spawn(path, line, output):
        assert (path / "catalog.arrow").exists()
        return os.posix_spawn("/bin/sh", script, {}, file_actions=[(os.POSIX_SPAWN_DUP2, output, 2)])

    monkeypatch.setattr(fetch_launch, "_spawn", spawn)
    previous = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        launch = FetchLaunch(store.catalog, store.settings, store.folder)
        with pytest.raises(StorageError, match=r"file://.*: a reason"):
            while not launch.lost_election:
                launch.check()
    finally:
        signal.signal(signal.SIGCHLD, previous)
    launch.close()


def test_folder_that_another_host_uses_is_an_error(folder, monkeypatch):
    store = store_of(folder)
    pickle.dumps(store)
    with (store.folder / "lock").open("wb") as lock:
        Holder("0" * 32, "node7\x1b", "12").write(lock.fileno())
    loser = SimpleNamespace(lost_election=True, check=lambda: None, close=lambda: None)
    monkeypatch.setattr(FetchLink, "_launch", lambda link: loser)
    with pytest.raises(
        StorageError, match=r"process 12 on the host node7.x1b; choose cache_dir on a local disk of each"
    ):
        store.start()
    monkeypatch.setattr(fetch_link, "_START_S", 0.1)
    Holder(protocol.boot_id(), "this", "13").write(os.open(store.folder / "lock", os.O_RDWR))
    with pytest.raises(StorageError, match="the fetch process 13 on this does not answer after"):
        store.start()


# -- messages ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def listener(folder):
    """A listener instead of a fetch process."""
    store = store_of(folder)
    pickle.dumps(store)
    with FakeFetchProcess(store.folder) as listener:
        yield listener


def test_stream_sends_its_slots_and_deliveries(folder, listener):
    store = store_of(folder, window=16)
    stream = store.open_stream()
    stream.begin(iter([np.array([3, 1], dtype=np.int32), np.array([-1], dtype=np.int32)]))
    stream.extend(iter([np.array([5], dtype=np.int32)]))
    assert listener.next(4) == [("BEGIN", 16), ("EXTEND", [3, 1]), ("EXTEND", [-1]), ("EXTEND", [5])]
    stream.delivered(1)
    stream.delivered(3)
    # The window of 16 makes steps of two.
    assert listener.next(1) == [("DELIVERED", 3)]
    stream.close()
    assert listener.next(1) == [("CLOSE", [])]
    store.close()


def test_lost_connection_is_replayed_from_the_first_block_that_was_not_delivered(folder, listener):
    store = store_of(folder, window=8)
    stream = store.open_stream()
    stream.begin(iter(np.arange(6, dtype=np.int32).reshape(3, 2)))
    assert [kind for kind, _ in listener.next(4)] == ["BEGIN", "EXTEND", "EXTEND", "EXTEND"]
    stream.delivered(3)
    assert listener.next(1) == [("DELIVERED", 3)]
    listener.drop()
    # Samples 0 and 1 are gone; of the block with 2 and 3, one was delivered.
    assert listener.next(4) == [("BEGIN", 8), ("EXTEND", [2, 3]), ("EXTEND", [4, 5]), ("DELIVERED", 1)]
    stream.delivered(6)
    assert listener.next(1) == [("DELIVERED", 4)]
    store.close()


def test_slots_are_computed_only_as_far_ahead_as_needed(folder, listener, monkeypatch):
    monkeypatch.setattr(fetch_link, "MAX_AHEAD", 10)
    computed = []

    def blocks():
        for number in range(100):
            computed.append(number)
            yield np.array([1, 2, 3, 4], dtype=np.int32)

    store = store_of(folder, window=8)
    stream = store.open_stream()
    stream.begin(blocks())
    assert len(listener.next(4)) == 4
    assert computed == [0, 1, 2]
    stream.delivered(4)
    assert listener.next(2) == [("DELIVERED", 4), ("EXTEND", [1, 2, 3, 4])]
    store.close()


def test_error_while_slots_are_computed_ends_only_the_order(folder, listener):
    def blocks():
        yield np.array([1], dtype=np.int32)
        raise RuntimeError("of the sampler")

    store = store_of(folder)
    stream = store.open_stream()
    stream.begin(blocks())
    assert listener.next(2) == [("BEGIN", 512), ("EXTEND", [1])]
    stream.begin(iter([np.array([2], dtype=np.int32)]))
    assert listener.next(2) == [("BEGIN", 512), ("EXTEND", [2])]
    store.close()


def test_client_and_streams_end_when_they_are_collected(folder, listener):
    store = store_of(folder)
    threads = set(threading.enumerate())
    stream = store.open_stream()
    stream.begin(iter([np.array([1], dtype=np.int32)]))
    listener.next(2)
    assert len(set(threading.enumerate()) - threads) == 1
    del stream
    assert listener.next(1) == [("CLOSE", [])]
    del store
    assert listener.next(1) == []
    assert set(threading.enumerate()) <= threads


def test_settings_that_the_fetch_process_ignores_are_a_warning(folder, listener):
    listener.answer = Answer(ignored=("cache_budget",))
    store = store_of(folder)
    with pytest.warns(UserWarning, match="other values of cache_budget, which stay in force"):
        store.start()
    store.close()


def test_options_that_the_fetch_process_refuses_are_an_error(folder, listener):
    listener.answer = Answer(error="storage.key is not an option of this store")
    with pytest.raises(StorageError, match=r"file://.*: storage\.key is not an option"):
        store_of(folder).start()


def test_descriptors_above_1023_are_served(folder, listener, monkeypatch):
    def connect(*arguments):
        with protocol.connect(*arguments) as connection:
            return socket.socket(fileno=fcntl.fcntl(connection, fcntl.F_DUPFD_CLOEXEC, 1024))

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    monkeypatch.setattr(fetch_link, "connect", connect)
    store = store_of(folder)
    try:
        stream = store.open_stream()
        stream.begin(iter([np.array([1], dtype=np.int32)]))
        assert listener.next(2)[1] == ("EXTEND", [1])
    finally:
        store.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_client_that_is_collected_in_its_thread_ends_quietly(folder, listener, monkeypatch):
    errors = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    other_threads = set(threading.enumerate())
    store = store_of(folder)

    def blocks():
        store.close()
        yield np.array([1], dtype=np.int32)

    stream = store.open_stream()
    stream.begin(blocks())
    assert [kind for kind, _ in listener.next(9)] == ["BEGIN"]
    for thread in set(threading.enumerate()) - other_threads:
        if thread.name == "lit_loader_storage":
            thread.join()
    assert errors == []
