"""Guarantee: one fetch process serves a host, its failures are one clear error, and nothing remains after it."""

from __future__ import annotations

import pickle
import socket
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from importlib.util import find_spec

import numpy as np
import pytest

from lit_loader.errors import CacheError, ImageError, StorageError
from lit_loader.storage import fetch_link, images
from lit_loader.storage.protocol import MessageKind, Messages, socket_address
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
    """Receives the messages to a fetch process."""

    def __init__(self, folder):
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with socket_address(folder, "control") as address:
            self._listener.bind(address)
        self._listener.listen()
        self._listener.settimeout(20)
        self._connection = None
        self._messages = deque()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self._listener.close()
        self.drop()

    def next(self, count):
        """Return the kinds and contents of the next messages, fewer if the client disconnects."""
        if self._connection is None:
            self._connection, _ = self._listener.accept()
            self._connection.settimeout(20)
            self._decoder = Messages()
        while len(self._messages) < count and (data := self._connection.recv(4096)):
            self._messages += self._decoder.feed(data)
        messages = [self._messages.popleft() for _ in range(min(count, len(self._messages)))]
        return [(message.kind.name, self._content(message)) for message in messages]

    def drop(self):
        """Close the connection, as a process that is killed."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    @staticmethod
    def _content(message):
        if message.kind is MessageKind.DELIVERED:
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
    with pytest.raises(ImageError, match=r"set/004\.png: no fetch process for .*; see its messages in .*log"):
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
    (folder / "away").rename(folder / "set/005.png")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        # The request to forget the failure may still be on its way.
        with suppress(ImageError):
            assert store.read("005.png") == (folder / "set/005.png").read_bytes()
            return
    pytest.fail("the image is not fetched again")


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
    assert listener.next(4) == [("RESTART", []), ("EXTEND", [3, 1]), ("EXTEND", [-1]), ("EXTEND", [5])]
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
    assert [kind for kind, _ in listener.next(4)] == ["RESTART", "EXTEND", "EXTEND", "EXTEND"]
    stream.delivered(3)
    assert listener.next(1) == [("DELIVERED", 3)]
    listener.drop()
    # Samples 0 and 1 are gone; of the block with 2 and 3, one was delivered.
    assert listener.next(3) == [("EXTEND", [2, 3]), ("EXTEND", [4, 5]), ("DELIVERED", 1)]
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
    assert listener.next(2) == [("RESTART", []), ("EXTEND", [1])]
    stream.begin(iter([np.array([2], dtype=np.int32)]))
    assert listener.next(2) == [("RESTART", []), ("EXTEND", [2])]
    store.close()


def test_client_and_streams_end_when_they_are_collected(folder, listener):
    threads = set(threading.enumerate())
    store = store_of(folder)
    stream = store.open_stream()
    stream.begin(iter([np.array([1], dtype=np.int32)]))
    listener.next(2)
    assert len(set(threading.enumerate()) - threads) == 1
    del stream
    assert listener.next(1) == [("CLOSE", [])]
    del store
    assert listener.next(1) == []
    assert set(threading.enumerate()) <= threads
