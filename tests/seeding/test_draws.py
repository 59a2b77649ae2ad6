"""Guarantee: in a worker thread every function of torch that takes a generator is given the thread's."""

from __future__ import annotations

import pytest
import torch

from lit_loader.seeding import EpochKeys, RngPurpose, ThreadScope, draw_modes, rand
from tests.support.drawing_calls import CALLS

KEYS = EpochKeys(3, 1)
SEED = KEYS.key(RngPurpose.SAMPLE, 0).torch


def test_every_torch_function_with_a_generator_has_a_handler():
    """A function that a new version of torch adds fails this test until it has been tried."""
    drawing_names = {
        schema.name.removeprefix("aten::")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("aten::") and "Generator" in str(schema)
    }
    drawing_names -= {"initial_seed", "manual_seed", "seed"}  # about the default generator
    drawing_names -= {"_fused_dropout", "Generator", "random"}  # on CUDA alone, a class, a module
    functions = [
        getattr(module, name)
        for module in (torch, torch.Tensor, torch._C._nn)
        for name in drawing_names
        if hasattr(module, name)
    ]
    assert len(functions) >= 28
    assert set(functions) <= set(draw_modes._HANDLERS)


@pytest.mark.filterwarnings("ignore:Singular sample detected:UserWarning")  # of torch's Wishart
@pytest.mark.parametrize("name", CALLS)
def test_thread_draws_like_the_seeded_default_generator(name):
    call = CALLS[name]
    seeded = torch.default_generator.manual_seed(SEED).get_state()
    expected = call().detach()
    assert not torch.equal(torch.default_generator.get_state(), seeded)  # it does draw
    untouched = torch.default_generator.manual_seed(1).get_state()
    scope = ThreadScope(0)
    with scope:
        scope.seed_for(KEYS, RngPurpose.SAMPLE, 0)
        drawn = call().detach()
    assert type(drawn) is type(expected)
    assert drawn.dtype == expected.dtype
    assert drawn.stride() == expected.stride()
    assert torch.equal(drawn, expected)
    assert torch.equal(torch.default_generator.get_state(), untouched)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_rand_draws_like_torch_on_the_cpu_in_threads_and_processes(device, dtype):
    default_dtype = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        torch.default_generator.manual_seed(SEED)
        expected = [torch.rand(size, device="cpu") for size in ((), (1,), (10, 4))]
        with ThreadScope(0) as scope, torch.device(device):
            scope.seed_for(KEYS, RngPurpose.SAMPLE, 0)
            in_thread = [rand(), rand(1), rand(10, 4)]
        torch.default_generator.manual_seed(SEED)
        with torch.device(device):
            elsewhere = [rand(), rand(1), rand(10, 4)]
    finally:
        torch.set_default_dtype(default_dtype)
    for draws in (in_thread, elsewhere):
        assert all(map(torch.equal, draws, expected))
        assert [draw.dtype for draw in draws] == [dtype] * 3
