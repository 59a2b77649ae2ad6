"""Guarantee: in a worker thread torch draws from a generator of the thread's own, and nothing else changes."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torchvision import tv_tensors

from lit_loader.seeding import RngPurpose, ThreadScope
from lit_loader.seeding.generators import context
from tests.support.background import running
from tests.support.scoped_draws import KEYS, scoped, seeded, several


def test_draws_of_one_sample_continue_one_stream():
    assert scoped(4, several) == seeded(4, several)
    assert scoped(4, several) != scoped(5, several)


def test_scope_is_seeded_once_for_each_key():
    scope = ThreadScope(0)
    first = scoped(0, several, scope)
    with scope:  # a second time for the same sample: the stream continues
        assert several() != first
    assert scoped(1, several, scope) == seeded(1, several)
    assert scoped(0, several, scope) == first


def test_scope_without_a_key_draws_like_a_worker_process():
    scope = ThreadScope(23)
    torch.manual_seed(23)
    expected = [several(), several()]
    drawn = []
    for _ in range(2):
        with scope:
            drawn.append(several())
    assert drawn == expected


def test_threads_do_not_share_a_stream():
    def draw(position):
        return [scoped(position, several) for _ in range(20)]

    expected = [[seeded(position, several)] * 20 for position in range(8)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(draw, range(8))) == expected


def test_default_generator_is_neither_used_nor_advanced():
    state = torch.manual_seed(5).get_state()
    scoped(0, several)
    assert torch.equal(torch.get_rng_state(), state)
    with ThreadScope(0):
        drawn = []
        other = threading.Thread(target=lambda: drawn.append(torch.rand(3)))  # has no scope
        other.start()
        other.join()
    assert torch.equal(drawn[0], torch.rand(3, generator=torch.Generator().manual_seed(5)))


def test_generator_passed_by_the_caller_is_used():
    def own(**options):
        return torch.rand(3, generator=torch.Generator().manual_seed(9), **options).tolist()

    assert scoped(0, own) == own() != scoped(0, lambda: torch.rand(3).tolist())

    def by_place():
        return torch.nn.init.uniform_(torch.empty(3), 0.0, 1.0, torch.Generator().manual_seed(9)).tolist()

    assert scoped(0, by_place) == by_place()

    def drawn_between():
        own()
        return several()

    assert scoped(0, drawn_between) == seeded(0, several)


def test_draws_on_other_devices_use_their_generators():
    def meta():
        shapes = torch.rand(3, device="meta"), torch.empty(2, device="meta").uniform_()
        shapes += torch.rand_like(torch.empty(4, device="meta")), torch.randint(3, (2,), device="meta")
        with torch.device("meta"):
            shapes += (torch.randn(5), torch.nn.Linear(2, 3).weight)
        return [shape.device.type for shape in shapes], several()

    devices, drawn = scoped(0, meta)
    assert devices == ["meta"] * 6
    assert drawn == seeded(0, several)


def test_tensor_of_another_device_keeps_its_generator_with_a_cpu_argument():
    def meta():
        torch.empty(3, device="meta").bernoulli_(torch.full((3,), 0.5))
        return context.seeded_for

    assert scoped(0, meta) is None
    assert scoped(0, lambda: (torch.rand(1), context.seeded_for)[1]) is not None


class Counting(TorchFunctionMode):
    num_calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.num_calls += 1
        return func(*args, **(kwargs or {}))


def test_other_function_modes_work_inside_and_outside():
    def inside():
        with Counting() as mode:
            drawn = several()
        assert mode.num_calls
        return drawn

    assert scoped(0, inside) == seeded(0, several)
    with Counting() as mode:
        assert scoped(0, several) == seeded(0, several)
    assert mode.num_calls


def test_draws_keep_subclasses_of_tensor():
    def draw():
        boxes = tv_tensors.BoundingBoxes(torch.zeros(2, 4), format="XYXY", canvas_size=(9, 9))
        return boxes.uniform_(), torch.rand_like(tv_tensors.Image(torch.zeros(3, 2, 2)))

    for a, b in zip(scoped(0, draw), seeded(0, draw), strict=True):
        assert type(a) is type(b)
        assert torch.equal(a, b)


def test_vmap_draws_from_the_thread_generator():
    def draw():
        return torch.func.vmap(lambda v: v + torch.rand(3), randomness="same")(torch.zeros(4, 3)).tolist()

    assert scoped(0, draw) == seeded(0, draw)


@pytest.mark.filterwarnings("ignore")  # of torch's compiler
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_draws_like_eager_code(backend, monkeypatch):
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # or a thread of the compiler's progress bar stays

    def drawing():
        return torch.ones(3).sin() * torch.rand(3) + torch.randn(3)

    compiled = torch.compile(drawing, backend=backend)
    for position in (0, 1):
        assert torch.equal(scoped(position, compiled), seeded(position, drawing))
    doubled = torch.compile(lambda: torch.ones(3) * 2, backend=backend)
    assert torch.equal(scoped(0, doubled), torch.full((3,), 2.0))


def test_large_draw_releases_the_interpreter_lock():
    turns = []

    def count(stop):
        while not stop.wait(0.001):
            turns.append(None)

    with ThreadScope(0), running(count):
        num_before = len(turns)
        torch.empty(10_000_000).normal_()
        num_during = len(turns) - num_before
    assert num_during > 3


def test_fork_of_a_thread_draws_from_the_default_generator():
    torch.manual_seed(3)
    expected = several()
    torch.manual_seed(3)
    with ThreadScope(0) as scope:
        scope.seed_for(KEYS, RngPurpose.SAMPLE, 0)
        pid = os.fork()
        if pid == 0:
            try:
                right = several() == expected
                torch.nn.functional.dropout(torch.ones(3))
                os._exit(0 if right and context.generator is None else 1)
            finally:
                os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
