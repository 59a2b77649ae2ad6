"""A worker's side of a slot: rows, references that user code keeps, and batches that do not fit."""

from __future__ import annotations

import gc
import mmap
import struct

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate as torch_default_collate

from lit_loader.memory import encode
from lit_loader.memory.mapping import ALIGNMENT
from tests.support.memory_link import Link, collate_in, large, made_in, num_maps


def means(rows):
    return [float(np.mean(np.asarray(row), dtype=np.float64)) for row in rows]


class TestReferencesOfUserCode:
    @pytest.mark.parametrize("kind", ["samples", "batch", "view", "array"])
    def test_references_and_later_batches_do_not_change_each_other(self, link, kind):
        references = []
        received = []

        def collate(samples):
            batch = collate_in(link)(samples)
            objects = {"samples": samples[0], "batch": batch[0], "view": batch[0, 0, :3], "array": samples[0].numpy()}
            references.append(objects[kind])
            return batch

        for number in range(6):
            received.append(link.collate([large(number), large(number + 0.5)], collate))
            assert means(references) == list(range(number + 1))
            references[number][:] = number + 100
            for n, batch in enumerate(received):
                assert means(batch) == [n, n + 0.5]
            references[number][:] = number
        received.clear()
        assert (link.collate([large(50)], collate_in(link)) == 50).all()

    def test_references_cost_a_mapping_each_only_while_they_live(self, link):
        references = []
        for number in range(8):
            link.collate([large(number)], lambda samples: references.append(samples) or samples)
        assert num_maps(link.inode) >= 8
        references.clear()
        gc.collect()
        assert num_maps(link.inode) <= 4


class TestRoom:
    def test_buffers_beyond_the_window_are_sent_through_the_pipe(self, monkeypatch):
        monkeypatch.setattr("lit_loader.memory.slot_writer.WINDOW_BYTES", 64 * mmap.PAGESIZE)
        link = Link()
        for count in (3, 30, 5):
            for collate in (list, collate_in(link)):
                batch = link.collate([large(n) for n in range(count)], collate)
                assert means(batch) == list(range(count))
        link.close()

    def test_worker_that_cannot_map_a_slot_sends_by_pipe(self, link, monkeypatch):
        def refuse(*_):
            raise OSError(12, "no memory")

        with monkeypatch.context() as patch:
            patch.setattr("lit_loader.memory.mapping._map", refuse)
            ticket = link.slots.ticket()
            frame = link.write(ticket, lambda writer: collate_in(link)([made_in(writer, large(3))]))
        assert (link.read(ticket, frame) == 3).all()
        assert link.used_bytes == 0
        assert (link.collate([large(4)], collate_in(link)) == 4).all()

    def test_slot_can_be_used_after_an_error_in_a_batch(self, link):
        def fail(samples):
            raise ArithmeticError("no")

        for number in range(3):
            with pytest.raises(ArithmeticError):
                link.collate([large(number)], fail)
            assert (link.collate([large(number + 5)], collate_in(link)) == number + 5).all()
        assert link.slots.num_slots <= 2


def test_torch_collate_of_samples_in_the_slot_is_right():
    link = Link(stacks_rows=False)
    for number in range(4):
        samples = [(large(number + n), np.full((64, 100), n)) for n in range(3)]
        tensors, arrays = link.collate(samples, torch_default_collate)
        assert means(tensors) == [number, number + 1, number + 2]
        assert means(arrays) == [0, 1, 2]
    link.close()


@pytest.mark.parametrize("count", [64 * 100, 5003])
def test_adjacent_samples_of_one_shape_form_their_stack_without_a_copy(link, count):
    ticket = link.slots.ticket()
    link.writer.open(ticket.number)
    samples = [made_in(link.writer, torch.full((count,), n, dtype=torch.float32)) for n in range(5)]
    batch = collate_in(link)(samples)
    assert batch.data_ptr() == samples[0].data_ptr()
    assert batch[:, 0].tolist() == batch[:, -1].tolist() == list(range(5))
    frame = encode(batch, link.writer.name)
    del samples, batch
    link.writer.close()
    assert [*struct.iter_unpack("<qQ", frame[1])] == [(0, 5 * 4 * count)]


def test_tensors_of_different_sizes_are_aligned_and_apart(link):
    sample = (large(1), torch.full((20_001,), 2, dtype=torch.uint8), large(3, 5, 30, 41).to(torch.complex64))
    for _ in range(3):
        batch = link.collate([tuple(tensor + n for tensor in sample) for n in range(9)], collate_in(link))
        assert all(stack.data_ptr() % ALIGNMENT == 0 for stack in batch)
        for value, stack in enumerate(batch, start=1):
            assert [complex(row.flatten()[0]) for row in stack] == [value + n for n in range(9)]
            assert all((row == row.flatten()[0]).all() for row in stack)


def test_two_stacks_of_the_same_samples_are_apart(link):
    def collate(samples):
        return collate_in(link)([(sample, sample) for sample in samples])

    for _ in range(3):
        first, second = link.collate([large(1), large(2)], collate)
        first += 5
        assert means(second) == [1, 2]


def test_samples_and_their_stack_do_not_share_memory_if_both_are_sent():
    link = Link(stacks_rows=False)
    for _ in range(3):
        samples, stack = link.collate([large(1), large(2)], lambda samples: (list(samples), collate_in(link)(samples)))
        stack += 5
        assert means(samples) == [1, 2]
        samples[0] += 9
        assert means(stack) == [6, 7]
    link.close()
