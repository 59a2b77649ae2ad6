"""The pass that is begun when the one before it has been dealt, over a pool whose every step the test decides."""

from __future__ import annotations

import pytest

from lit_loader.engine import EndOfPass
from tests.engine.fake_pool import FakePool, plan, rest, shared


class TestTheNextPass:
    def chain(self, pool, lengths, **options):
        """Return the first of several passes, each begun by the one before, and a list of all that were begun."""
        begun = []

        def begin(n):
            if n == len(lengths):
                return None
            begun.append(shared(pool, plan(lengths[n], epoch=n), claim=n == 0, **options))
            return begun[-1]

        first = shared(pool, plan(lengths[0]), following=lambda: begin(1), **options)
        return first, begun, begin

    def test_it_is_dealt_batch_by_batch_when_the_plan_has_come_to_its_end(self):
        pool = FakePool(2)
        first, begun, _ = self.chain(pool, [8, 20])
        assert begun == []
        for n in range(8):
            first.next_batch()
            assert len(begun) == (n >= 2)  # six are out; the third that is delivered finds no more of its own
            assert len(pool.tasks) == 6
        assert {header.run for header, _, _ in pool.tasks} == {1}

    def test_it_is_filled_up_when_it_is_claimed_and_gives_its_own_batches(self):
        pool = FakePool(2)
        first, begun, begin = self.chain(pool, [1, 20, 1])
        first.next_batch()
        assert len(pool.tasks) == 6  # nothing of the first is left, all that may be held is of the second
        with pytest.raises(EndOfPass):
            first.next_batch()
        assert begun[0].claim(lambda: begin(2))
        assert len(rest(begun[0])) == 20
        assert len(begun) == 2

    def test_both_together_hold_no_more_than_one(self):
        pool = FakePool(2)
        first, _, _ = self.chain(pool, [3, 20])
        assert len(pool.tasks) == 6
        delivered = 0
        while delivered < 3:
            first.next_batch()
            delivered += 1
            assert len(pool.tasks) == 6

    def test_it_serves_one_iterator(self):
        pool = FakePool()
        first, begun, _ = self.chain(pool, [1, 5])
        first.next_batch()
        assert begun[0].claim(None)
        assert not begun[0].claim(None)

    def test_only_one_is_begun_though_it_is_shorter_than_what_may_be_held(self):
        pool = FakePool()
        first, begun, _ = self.chain(pool, [1, 1, 1, 1])
        assert len(rest(first)) == 1
        assert len(begun) == 1

    def test_it_may_be_empty(self):
        pool = FakePool()
        first, begun, _ = self.chain(pool, [2, 0])
        assert len(rest(first)) == 2
        assert begun[0].claim(None)
        assert rest(begun[0]) == []

    def test_after_an_error_of_the_plan_it_is_not_begun(self):
        def failing():
            yield from plan(1)
            raise LookupError

        begun = []
        run = shared(FakePool(), failing(), following=lambda: begun.append(1))
        run.next_batch()
        with pytest.raises(LookupError):
            run.next_batch()
        assert begun == []

    def test_an_error_of_its_plan_waits_until_it_is_claimed(self):
        def failing():
            raise LookupError("of the next")
            yield

        pool = FakePool()
        successor = []

        def begin():
            successor.append(shared(pool, failing(), claim=False))
            return successor[0]

        first = shared(pool, plan(2), following=begin)
        assert len(rest(first)) == 2
        assert successor[0].claim(None)
        with pytest.raises(LookupError, match="of the next"):
            successor[0].next_batch()

    def test_closing_the_first_leaves_it(self):
        pool = FakePool()
        first, begun, _ = self.chain(pool, [2, 3])
        first.next_batch()
        first.close()
        assert begun[0].claim(None)
        assert len(rest(begun[0])) == 3
