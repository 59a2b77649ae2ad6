"""The lost tasks of a dead worker are found exactly, in any order of events."""

from __future__ import annotations

import random

import pytest

from lit_loader.engine.recovery import Recovery
from lit_loader.errors import WorkerRestartWarning


def test_suspects_without_a_result_after_all_reports_are_lost():
    recovery = Recovery(3)
    in_flight = [1, 2, 3]
    this_round = recovery.begin_round({1, 2}, survivors=[0, 2])
    assert recovery.take_lost(in_flight) == []
    in_flight.remove(1)
    recovery.report(0, this_round)
    assert recovery.take_lost(in_flight) == []
    in_flight.append(4)  # cannot be lost, because it was sent later
    recovery.report(2, this_round)
    assert recovery.take_lost(in_flight) == [2]
    assert recovery.take_lost(in_flight) == []


def test_without_survivors_all_suspects_are_lost():
    recovery = Recovery(3)
    recovery.begin_round({6, 5}, survivors=[])
    assert recovery.take_lost([5, 6]) == [5, 6]


def test_report_of_an_earlier_round_does_not_count():
    recovery = Recovery(3)
    first = recovery.begin_round({0, 1}, survivors=[1])
    second = recovery.begin_round({0, 1}, survivors=[0])
    recovery.report(0, first)
    assert recovery.take_lost([0, 1]) == []
    recovery.report(0, second)
    assert recovery.take_lost([0, 1]) == [0, 1]


def test_reports_are_awaited_only_while_there_are_suspects():
    recovery = Recovery(3)
    assert not recovery.unreported
    recovery.begin_round({0}, survivors=[0, 2])
    assert set(recovery.unreported) == {0, 2}
    recovery.begin_round(set(), survivors=[0, 2])
    assert not recovery.unreported


def test_each_restart_warns_even_if_warnings_are_errors():
    recovery = Recovery(3)
    for worker in range(2):
        recovery.note_restart(worker, 100 + worker, "exit code 7")
    for worker in range(2):
        with pytest.raises(WorkerRestartWarning, match=rf"worker {worker} \(pid 10{worker}\).*restart {worker + 1} of"):
            recovery.warn()
    recovery.warn()


def test_random_deaths_lose_and_repeat_no_task():
    """A model of workers that take, answer and die; every task is answered once, whatever happens."""
    for seed in range(300):
        draw = random.Random(seed)
        recovery = Recovery(3)
        in_flight = {}
        queue = []
        num_workers = draw.randint(1, 4)
        total = 30
        hands = [None] * num_workers  # the task of each worker
        mail = [[] for _ in range(num_workers)]  # the rounds in which it must report
        wire = []  # messages on their way to the main process, in order for each worker
        answered = []
        sent = 0

        def arrive(worker, kind, number, answered=answered, in_flight=in_flight, recovery=recovery):
            if kind == "report":
                recovery.report(worker, number)
                return
            assert number not in answered
            answered.append(number)
            del in_flight[number]

        for _ in range(100_000):
            if len(answered) == total:
                break
            step = draw.random()
            worker = draw.randrange(num_workers)
            if step < 0.3 and sent < total:
                in_flight[sent] = True
                queue.append(sent)
                sent += 1
            elif step < 0.55:
                if hands[worker] is not None:
                    wire.append((worker, "answer", hands[worker]))
                    hands[worker] = None
                elif mail[worker]:
                    wire.append((worker, "report", mail[worker].pop(0)))
                elif queue:
                    hands[worker] = queue.pop(0)
            elif step < 0.9 and wire:
                arrive(*wire.pop(0))
            elif step > 0.97:
                # The worker dies. Its messages arrive before its death is noticed.
                for message in [message for message in wire if message[0] == worker]:
                    arrive(*message)
                wire = [message for message in wire if message[0] != worker]
                hands[worker] = None
                mail[worker] = []
                survivors = [survivor for survivor in range(num_workers) if survivor != worker]
                this_round = recovery.begin_round(set(in_flight).difference(queue), survivors=survivors)
                for survivor in survivors:
                    mail[survivor].append(this_round)
            queue.extend(recovery.take_lost(in_flight))
        assert sorted(answered) == list(range(total))
