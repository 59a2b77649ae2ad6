"""A worker process's connection: its own pipe, the shared queue and the pipe that wakes it."""

from __future__ import annotations

import os
import threading
from multiprocessing import Pipe

import pytest

from lit_loader.engine import Task
from lit_loader.engine.channels import FrameWriter, TaskQueue, pack_frame
from lit_loader.engine.spec import Kind, Message
from lit_loader.engine.worker import ProcessLink, WorkerEnds, pack_message, pack_task, unpack_task
from tests.support.memory_link import worker_spec


class Ends:
    """The main process's ends, and a link in this process; a test starts the thread that listens itself."""

    def __init__(self, monkeypatch):
        started = []
        monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread))
        self.queue = TaskQueue()
        theirs, ours = zip(*(Pipe(duplex=False) for _ in range(2)), strict=True)
        ours_results, results = Pipe(duplex=False)
        self.pipes = [*theirs, *ours, ours_results, results]
        self.control, self.tasks = (FrameWriter(end.fileno()) for end in ours)
        ends = WorkerEnds(*theirs, results, self.queue.theirs, None, None)
        self.link = ProcessLink(worker_spec(range(8)), 0, os.getppid(), ends)
        monkeypatch.undo()
        self.listener = next(thread for thread in started if "control" in thread.name)

    def close_tasks(self):
        self.pipes[3].close()

    def close(self):
        if self.listener.is_alive():
            self.control.send([pack_message(Message(Kind.STOP))])
            self.listener.join()
        self.queue.close()
        for fd in (self.link._woken_fd, self.link._wake_fd):
            os.close(fd)
        for pipe in self.pipes:
            pipe.close()


@pytest.fixture
def ends(monkeypatch):
    ends = Ends(monkeypatch)
    yield ends
    ends.close()


def frame_of(number):
    return [pack_message(Message(Kind.TASK, 0, number)), *pack_task(Task([number]))]


def test_link_receives_own_and_shared_tasks_until_stop(ends):
    ends.queue.put(pack_frame(frame_of(1)))
    ends.tasks.send(frame_of(2))
    received = [ends.link.receive() for _ in range(2)]
    assert {message.number: unpack_task(frame).index for message, frame in received} == {1: [1], 2: [2]}
    ends.tasks.send(frame_of(3))
    ends.link._stop()
    assert ends.link.receive() is None


@pytest.mark.parametrize("source", ["shared", "own", "stop"])
def test_link_waits_for_the_next_message(ends, source):
    received = []
    thread = threading.Thread(target=lambda: received.append(ends.link.receive()))
    thread.start()
    ends.listener.start()
    thread.join(0.1)
    assert thread.is_alive()
    if source == "shared":
        ends.queue.put(pack_frame(frame_of(4)))
    elif source == "own":
        ends.tasks.send(frame_of(4))
    else:
        ends.control.send([pack_message(Message(Kind.STOP))])
    thread.join(10)
    assert not thread.is_alive()
    assert [None if item is None else item[0].number for item in received] == [None if source == "stop" else 4]


def test_link_ends_when_its_pipe_is_closed(ends):
    ends.close_tasks()
    assert ends.link.receive() is None


def test_end_of_epoch_arrives_without_receive(ends):
    """A worker does not call `receive` while it makes a sample."""
    ends.listener.start()
    ends.control.send([pack_message(Message(Kind.END_EPOCH, 3))])
    ends.control.send([pack_message(Message(Kind.STOP))])
    ends.listener.join(10)
    assert ends.link.has_ended(3)
    assert not ends.link.has_ended(4)
