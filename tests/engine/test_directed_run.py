"""A pass whose tasks are for one worker each, over a pool whose every step the test decides."""

from __future__ import annotations

import pytest

from lit_loader.engine import Task
from lit_loader.engine.messages import Header, Kind
from tests.engine.fake_pool import FakePool, batch, directed, plan, rest


class TestDirectedRun:
    def test_in_turns_the_worker_of_a_batch_is_its_number(self):
        pool = FakePool(3)
        run = directed(pool, plan(12))
        assert [worker for _, _, worker in pool.tasks] == [0, 1, 2, 0, 1, 2]
        pool.do(5)
        pool.do(4)
        assert len(rest(run)) == 12

    def test_the_least_busy_takes_the_next(self):
        pool = FakePool(3)
        run = directed(pool, plan(12), in_turns=False, in_order=False)
        pool.do(1)
        assert run.next_batch() == batch(1)
        assert pool.tasks[-1][2] == 1

    def test_a_worker_at_its_end_gets_no_more_and_the_others_do_what_it_leaves(self):
        pool = FakePool(2)
        run = directed(pool, plan(8))
        pool.do(0, kind=Kind.ENDED)
        found = rest(run)
        assert found == [batch(n) for n in (1, 3, 4, 5, 6, 7)]

    def test_an_index_that_cannot_be_sent_is_raised_in_its_turn(self):
        tasks = [Task([0]), Task("unpicklable"), Task([2])]
        run = directed(FakePool(), tasks)
        assert run.next_batch() == (0,)
        with pytest.raises(TypeError, match="cannot pickle"):
            run.next_batch()
        assert rest(run) == [(2,)]

    def test_when_all_have_ended_so_has_the_pass(self):
        pool = FakePool(2)

        def endless():
            while True:
                yield Task([0])

        run = directed(pool, endless())
        while pool.tasks:
            header, _, worker = pool.tasks.pop()
            run.receive(worker, Header(Kind.ENDED, header.run, header.number), None)
        assert rest(run) == []
