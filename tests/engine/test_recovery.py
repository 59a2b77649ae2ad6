"""What a dead worker took with it is found out exactly, whatever the order of events."""

from __future__ import annotations

import random

import pytest

from lit_loader.engine.recovery import Recovery
from lit_loader.errors import WorkerRestartWarning


def test_what_nobody_answered_when_all_have_reported_was_lost():
    recovery, in_flight = Recovery(3), [1, 2, 3]
    this_round = recovery.begin_round({1, 2}, survivors=[0, 2])
    assert recovery.take_lost(in_flight) == []
    in_flight.remove(1)
    recovery.report(0, this_round)
    assert recovery.take_lost(in_flight) == []
    in_flight.append(4)  # cannot be lost: it was given out later
    recovery.report(2, this_round)
    assert recovery.take_lost(in_flight) == [2]
    assert recovery.take_lost(in_flight) == []


def test_the_last_worker_leaves_nobody_to_ask():
    recovery = Recovery(3)
    recovery.begin_round({6, 5}, survivors=[])
    assert recovery.take_lost([5, 6]) == [5, 6]


def test_a_report_of_an_earlier_round_does_not_count():
    recovery = Recovery(3)
    first = recovery.begin_round({0, 1}, survivors=[1])
    second = recovery.begin_round({0, 1}, survivors=[0])
    recovery.report(0, first)
    assert recovery.take_lost([0, 1]) == []
    recovery.report(0, second)
    assert recovery.take_lost([0, 1]) == [0, 1]


def test_only_while_a_task_may_be_lost_is_a_report_waited_for():
    recovery = Recovery(3)
    assert not recovery.unreported
    recovery.begin_round({0}, survivors=[0, 2])
    assert set(recovery.unreported) == {0, 2}
    recovery.begin_round(set(), survivors=[0, 2])
    assert not recovery.unreported


def test_each_restart_is_warned_of_though_warnings_are_errors():
    recovery = Recovery(3)
    for worker in range(2):
        recovery.note_restart(worker, 100 + worker, "exit code 7")
    for worker in range(2):
        with pytest.raises(
            WorkerRestartWarning, match=rf"worker {worker} \(pid 10{worker}\).*restart {worker + 1} of"
        ):
            recovery.warn()
    recovery.warn()


def test_random_deaths_lose_nothing_and_give_nothing_out_twice():
    """A model of workers that take, answer and die; every task is answered once, whatever happens."""
    for seed in range(300):
        draw = random.Random(seed)
        recovery, in_flight, queue = Recovery(3), {}, []
        num_workers, total = draw.randint(1, 4), 30
        hands = [None] * num_workers  # each worker's task
        mail = [[] for _ in range(num_workers)]  # rounds it is asked to report in
        wire = []  # what is on its way to the main process, in order for each worker
        answered, sent = [], 0

        def arrive(worker, what, number, answered=answered, in_flight=in_flight, recovery=recovery):
            if what == "report":
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
            elif step > 0.97:  # it dies; what it had sent arrives before its death is noticed
                for one in [one for one in wire if one[0] == worker]:
                    arrive(*one)
                wire = [one for one in wire if one[0] != worker]
                hands[worker], mail[worker] = None, []
                living = [other for other in range(num_workers) if other != worker]
                this_round = recovery.begin_round(set(in_flight).difference(queue), survivors=living)
                for other in living:
                    mail[other].append(this_round)
            queue.extend(recovery.take_lost(in_flight))
        assert sorted(answered) == list(range(total))
