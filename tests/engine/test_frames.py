"""Frames arrive whole and in order, however few bytes the pipe accepts at a time."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from functools import partial

import pytest

from lit_loader.engine.channels import FrameReader, FrameWriter
from tests.support.background import running


@pytest.fixture
def pipe():
    """The ends of a pipe that does not block."""
    fds = os.pipe()
    for fd in fds:
        os.set_blocking(fd, False)
    yield fds
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


@pytest.fixture
def reader(pipe):
    return FrameReader(pipe[0])


@pytest.fixture
def writer(pipe):
    return FrameWriter(pipe[1])


def as_bytes(frame):
    return [bytes(buffer) for buffer in frame]


def receive(reader, writer, count):
    """Read frames, and write the rest of them when the pipe is empty."""
    frames = []
    while len(frames) < count:
        frame = reader.receive()
        if frame is None:
            writer.flush()
        else:
            frames.append(frame)
    return frames


ONE_BYTE_BUFFERS = [bytes([number % 256]) for number in range(3000)]


@pytest.mark.parametrize(
    "buffers",
    [[], [b""], [b"a"], [b"", b"xy", b""], [os.urandom(10_000), b"z"], ONE_BYTE_BUFFERS],
    ids=["none", "empty", "one", "empty ones around", "large", "more than one system call takes"],
)
def test_frame_arrives_unchanged(reader, writer, buffers):
    writer.send(buffers)
    assert as_bytes(reader.receive()) == buffers


def test_small_and_large_frames_arrive_in_order_through_a_full_pipe(reader, writer):
    sent = [[os.urandom(n % 40)] * (n % 4) for n in range(2000)]
    sent[700] = [os.urandom(10), os.urandom(300_000), b"", os.urandom(70_000)]
    for frame in sent:
        writer.send(frame)
    assert writer.waiting
    assert [as_bytes(frame) for frame in receive(reader, writer, len(sent))] == sent
    assert not writer.waiting


def test_incomplete_frame_is_not_delivered_and_ends_with_eof(pipe, reader, writer):
    writer.send([b"whole"])
    os.write(pipe[1], (1).to_bytes(4, "little") + (100).to_bytes(8, "little") + b"only a part")
    assert as_bytes(reader.receive()) == [b"whole"]
    assert reader.receive() is None
    os.close(pipe[1])
    with pytest.raises(EOFError):
        reader.receive()


def test_frame_sent_by_a_finalizer_waits_for_the_end_of_the_interrupted_one(reader, writer, monkeypatch):
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
    assert as_bytes(reader.receive()) == [b"outer", b"frame"]
    assert as_bytes(reader.receive()) == [b"nested"]


def test_frames_of_several_threads_stay_whole(reader, writer):
    def send(number, _):
        for _ in range(50):
            writer.send([bytes([number]) * 5000] * 3)

    with running(*(partial(send, number) for number in range(4))):
        frames = [as_bytes(frame) for frame in receive(reader, writer, 200)]
    assert sorted(frames) == sorted([bytes([number]) * 5000] * 3 for number in range(4) for _ in range(50))


@pytest.mark.parametrize("cut", range(1, 53, 7))
def test_frame_that_arrives_in_two_parts_is_whole(pipe, reader, writer, cut):
    writer.send([b"first", b"", b"x" * 20])
    data = os.read(pipe[0], 1000)
    os.write(pipe[1], data[:cut])
    assert reader.receive() is None
    os.write(pipe[1], data[cut:])
    assert as_bytes(reader.receive()) == [b"first", b"", b"x" * 20]
    assert reader.receive() is None


@pytest.mark.parametrize("size", [10, 200_000])
def test_buffers_are_writable_and_apart(reader, writer, size):
    writer.send([bytes(size), bytes(size)])
    ((first, second),) = receive(reader, writer, 1)
    first[:] = b"1" * size
    assert bytes(second) == bytes(size)


class Interrupt(BaseException):
    pass


def test_interrupts_never_cut_or_repeat_a_frame(reader, writer):
    """A frame that was cut or repeated would spoil all frames after it."""
    frames = []
    interrupts = 0
    armed = False

    def interrupt(*_):
        # An alarm may come late.
        if armed:
            raise Interrupt

    def read_all():
        while (frame := reader.receive()) is not None:
            frames.append(frame)

    handler = signal.signal(signal.SIGALRM, interrupt)
    timer = signal.setitimer(signal.ITIMER_REAL, 0)
    # An error that is raised in another library's callback of the collector would only be printed.
    gc.disable()
    try:
        for number in range(4000):
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, 2e-6 * (1 + number % 25))
                writer.send([bytes([number % 251]) * 700] * 2)
                # Wait for the alarm. Python may swallow one, in a finalizer for example.
                for _ in range(20_000):
                    pass
                armed = False
            except Interrupt:
                interrupts += 1
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            read_all()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        gc.enable()
        signal.signal(signal.SIGALRM, handler)
        # The timeout of the tests.
        signal.setitimer(signal.ITIMER_REAL, *timer)
    writer.send([b"the end", b""])
    # On a busy machine more may wait than a pipe holds.
    while writer.waiting:
        writer.flush()
        read_all()
    read_all()
    assert interrupts > 1000
    assert as_bytes(frames.pop()) == [b"the end", b""]
    assert len(frames) > 1000
    assert all(len(set(bytes(frame[0]) + bytes(frame[1]))) == 1 for frame in frames)
