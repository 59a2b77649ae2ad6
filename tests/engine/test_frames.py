"""Frames arrive whole and in order, however few bytes the pipe accepts at a time."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading

import pytest

from lit_loader.engine.channels import FrameReader, FrameWriter


@pytest.fixture
def pipe():
    read, write = os.pipe()
    yield read, write
    for fd in (read, write):
        with contextlib.suppress(OSError):
            os.close(fd)


def as_bytes(frame):
    return [bytes(buffer) for buffer in frame]


@pytest.mark.parametrize("buffers", [[], [b""], [b"a"], [b"", b"xy", b""], [os.urandom(10_000), b"z"]])
def test_a_frame_arrives_as_it_was_sent(pipe, buffers):
    read, write = pipe
    FrameWriter(write).send(buffers)
    assert as_bytes(FrameReader(read).receive()) == buffers


def test_incomplete_frame_is_not_delivered_and_ends_with_eof(pipe):
    read, write = pipe
    os.set_blocking(read, False)
    reader = FrameReader(read)
    FrameWriter(write).send([b"whole"])
    os.write(write, (1).to_bytes(4, "little") + (100).to_bytes(8, "little") + b"only a part")
    assert as_bytes(reader.receive()) == [b"whole"]
    assert reader.receive() is None
    os.close(write)
    with pytest.raises(EOFError):
        reader.receive()


def test_a_frame_sent_in_the_middle_of_another_one_waits_for_its_end(pipe, monkeypatch):
    """A finalizer may send at any time, also during a write."""
    read, write = pipe
    writer = FrameWriter(write)
    writev = os.writev
    nested = []

    def interrupted(fd, buffers):
        if not nested:
            nested.append(True)
            written = writev(fd, [buffers[0][:3]])
            writer.send([b"nested"])
            return written
        return writev(fd, buffers)

    monkeypatch.setattr(os, "writev", interrupted)
    writer.send([b"outer", b"frame"])
    reader = FrameReader(read)
    assert as_bytes(reader.receive()) == [b"outer", b"frame"]
    assert as_bytes(reader.receive()) == [b"nested"]


def test_frames_of_several_threads_stay_whole(pipe):
    read, write = pipe
    writer = FrameWriter(write)

    def send(number):
        for _ in range(50):
            writer.send([bytes([number]) * 5000] * 3)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    reader = FrameReader(read)
    senders = []
    for _ in range(200):
        frame = as_bytes(reader.receive())
        assert len(set(frame)) == 1
        assert len(frame) == 3
        senders.append(frame[0][0])
    for thread in threads:
        thread.join()
    assert sorted(senders) == sorted(list(range(4)) * 50)


def test_more_buffers_than_one_system_call_takes(pipe):
    read, write = pipe
    buffers = [bytes([number % 256]) for number in range(3000)]
    FrameWriter(write).send(buffers)
    assert as_bytes(FrameReader(read).receive()) == buffers


def test_many_small_frames_and_large_ones_between_them_come_from_one_read(pipe):
    read, write = pipe
    os.set_blocking(write, False)
    os.set_blocking(read, False)
    writer = FrameWriter(write)
    reader = FrameReader(read)
    sent = [[os.urandom(n % 40)] * (n % 4) for n in range(2000)]
    sent[700] = [os.urandom(10), os.urandom(300_000), b"", os.urandom(70_000)]
    for frame in sent:
        writer.send(frame)
    assert writer.waiting
    received = []
    while len(received) < len(sent):
        frame = reader.receive()
        if frame is None:
            writer.flush()
        else:
            received.append(as_bytes(frame))
    assert received == sent
    assert not writer.waiting


@pytest.mark.parametrize("cut", range(1, 53, 7))
def test_a_frame_that_comes_in_two_parts_is_whole_wherever_it_was_cut(pipe, cut):
    read, write = pipe
    os.set_blocking(read, False)
    other_read, other_write = os.pipe()
    FrameWriter(other_write).send([b"first", b"", b"x" * 20])
    data = os.read(other_read, 1000)
    os.close(other_read)
    os.close(other_write)
    reader = FrameReader(read)
    os.write(write, data[:cut])
    assert reader.receive() is None
    os.write(write, data[cut:])
    assert as_bytes(reader.receive()) == [b"first", b"", b"x" * 20]
    assert reader.receive() is None


@pytest.mark.parametrize("size", [10, 200_000])
def test_each_buffer_can_be_written_to_and_is_its_own_memory(pipe, size):
    read, write = pipe
    writer = threading.Thread(target=FrameWriter(write).send, args=([bytes(size), bytes(size)],))
    writer.start()
    frame = FrameReader(read).receive()
    writer.join()
    frame[0][:] = b"1" * size
    assert bytes(frame[1]) == bytes(size)


class Interrupt(BaseException):
    pass


def test_interrupts_never_cut_or_repeat_a_frame(pipe):
    """Ctrl-C may come in the middle of a send, and a frame that was cut or repeated would spoil all after it."""
    read, write = pipe
    os.set_blocking(write, False)
    os.set_blocking(read, False)
    writer = FrameWriter(write)
    reader = FrameReader(read)
    frames = []
    interrupts = 0

    def interrupt(*_):
        if armed:  # an alarm may come late
            raise Interrupt

    armed = False
    handler = signal.signal(signal.SIGALRM, interrupt)
    timer = signal.setitimer(signal.ITIMER_REAL, 0)
    gc.disable()  # an error raised in another library's callback of the collector would only be printed
    try:
        for number in range(4000):
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, 2e-6 * (1 + number % 25))
                writer.send([bytes([number % 251]) * 700] * 2)
                for _ in range(20_000):  # until the alarm; Python may swallow one, in a finalizer for example
                    pass
                armed = False
            except Interrupt:
                interrupts += 1
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            while (frame := reader.receive()) is not None:
                frames.append(frame)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        gc.enable()
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)  # the timeout of the tests
    writer.send([b"the end", b""])
    is_written = False
    while not is_written:  # on a busy machine more may wait than a pipe holds
        writer.flush()
        is_written = not writer.waiting
        while (frame := reader.receive()) is not None:
            frames.append(frame)
    assert interrupts > 1000
    assert as_bytes(frames.pop()) == [b"the end", b""]
    assert len(frames) > 1000
    assert all(len(set(bytes(frame[0]) + bytes(frame[1]))) == 1 for frame in frames)
