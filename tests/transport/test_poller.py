"""Guarantee: without ``select.poll`` descriptors are waited for by ``select.select``, with the same answers."""

from __future__ import annotations

import os
import select
import threading
import time

import pytest

from lit_loader.transport import READABLE, WRITABLE, new_poller
from lit_loader.transport.poller import _SelectPoller


@pytest.fixture
def pipe():
    ends = list(os.pipe())
    yield ends
    for fd in ends:
        os.close(fd)


def test_poll_itself_is_used_where_there_is_one():
    assert new_poller is select.poll
    assert (READABLE, WRITABLE) == (select.POLLIN, select.POLLOUT)


@pytest.mark.parametrize("kind", [select.poll, _SelectPoller], ids=["poll", "select"])
class TestEach:
    def test_tells_what_is_ready(self, kind, pipe):
        reader, writer = pipe
        poller = kind()
        poller.register(reader, READABLE)
        assert poller.poll(0) == []
        poller.register(writer, WRITABLE)
        assert poller.poll(0) == [(writer, WRITABLE)]
        os.write(writer, b"a")
        assert sorted(poller.poll()) == sorted([(reader, READABLE), (writer, WRITABLE)])

    def test_registering_again_exchanges_the_events(self, kind, pipe):
        _, writer = pipe
        poller = kind()
        poller.register(writer, WRITABLE)
        poller.register(writer, READABLE)
        assert poller.poll(0) == []

    def test_waits_so_many_milliseconds(self, kind, pipe):
        poller = kind()
        poller.register(pipe[0], READABLE)
        start = time.monotonic()
        assert poller.poll(30) == []
        assert 0.025 < time.monotonic() - start < 5

    def test_waits_until_something_is_ready(self, kind, pipe):
        poller = kind()
        poller.register(pipe[0], READABLE)
        timer = threading.Timer(0.05, os.write, (pipe[1], b"a"))
        timer.start()
        assert poller.poll() == [(pipe[0], READABLE)]
        timer.join()

    def test_an_end_that_was_closed_wakes_the_other_one(self, kind, pipe):
        reader, writer = pipe
        os.close(writer)
        poller = kind()
        poller.register(reader, READABLE)
        assert [fd for fd, _ in poller.poll()] == [reader]
        pipe[:] = [reader]

    def test_an_end_that_nobody_reads_wakes_its_writer(self, kind, pipe):
        reader, writer = pipe
        os.set_blocking(writer, False)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(writer, bytes(1 << 16))
        poller = kind()
        poller.register(writer, WRITABLE)
        assert poller.poll(0) == []
        os.close(reader)
        assert [fd for fd, _ in poller.poll()] == [writer]
        pipe[:] = [writer]
