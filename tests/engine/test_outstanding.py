"""What a dead worker took with it is known exactly, whatever order things are heard in."""

from __future__ import annotations

import random

from lit_loader.engine.messages import Header, Kind
from lit_loader.engine.outstanding import Outstanding, name_of


def header(number):
    return Header(Kind.TASK, 1, number)


def given(*numbers):
    tasks = Outstanding()
    for number in numbers:
        tasks.give(header(number), b"")
    return tasks


def lost(tasks):
    return [head.number for head, _ in tasks.lost()]


def test_what_nobody_answered_when_all_have_reported_was_lost():
    tasks = given(0, 1, 2, 3)
    tasks.answer(header(0))
    round_number = tasks.begin_round(queued=[name_of(header(3))], living=[0, 2])
    assert lost(tasks) == []
    tasks.answer(header(1))
    tasks.report(0, round_number)
    assert lost(tasks) == []
    tasks.give(header(4), b"")  # cannot be lost: it was given later
    tasks.report(2, round_number)
    assert lost(tasks) == [2]
    assert lost(tasks) == []


def test_the_last_worker_leaves_nobody_to_ask():
    tasks = given(5, 6)
    tasks.begin_round(queued=[], living=[])
    assert lost(tasks) == [5, 6]


def test_a_report_of_an_earlier_round_does_not_count():
    tasks = given(0, 1)
    first = tasks.begin_round(queued=[], living=[1])
    second = tasks.begin_round(queued=[], living=[0])
    tasks.report(0, first)
    assert lost(tasks) == []
    tasks.report(0, second)
    assert lost(tasks) == [0, 1]


def test_random_deaths_lose_nothing_and_give_nothing_twice():
    """A model of workers that take, answer and die; every task is answered once, whatever happens."""
    for seed in range(300):
        draw = random.Random(seed)
        tasks, queue, num_workers, total = Outstanding(), [], draw.randint(1, 4), 30
        hands = [None] * num_workers  # each worker's task
        mail = [[] for _ in range(num_workers)]  # rounds it is asked to report in
        wire = []  # what is on its way to the main process, in order for each worker
        answered, sent = [], 0
        for _ in range(100_000):
            if len(answered) == total:
                break
            step = draw.random()
            worker = draw.randrange(num_workers)
            if step < 0.3 and sent < total:
                tasks.give(header(sent), b"")
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
                sender, what, number = wire.pop(0)
                if what == "answer":
                    assert number not in answered
                    answered.append(number)
                    tasks.answer(header(number))
                else:
                    tasks.report(sender, number)
            elif step > 0.97:  # it dies; what it had sent arrives before its death is noticed
                for sender, what, number in [one for one in wire if one[0] == worker]:
                    if what == "answer":
                        answered.append(number)
                        tasks.answer(header(number))
                    else:
                        tasks.report(sender, number)
                wire = [one for one in wire if one[0] != worker]
                hands[worker], mail[worker] = None, []
                living = [other for other in range(num_workers) if other != worker]
                this_round = tasks.begin_round(
                    queued={name_of(header(number)) for number in queue}, living=living
                )
                for other in living:
                    mail[other].append(this_round)
            queue.extend(head.number for head, _ in tasks.lost())
        assert sorted(answered) == list(range(total))
