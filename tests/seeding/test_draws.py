"""Guarantee: in a worker thread every operator of torch that draws is given the thread's generator, or is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lit_loader.seeding import EpochKeys, RngPurpose, ThreadScope, preserved_generators
from lit_loader.seeding.thread_scope import TAKES_GENERATOR, TAKES_NO_GENERATOR
from tests.seeding.drawing_calls import CALLS

KEYS = EpochKeys(3, 1)
SEED = KEYS.key(RngPurpose.SAMPLE, 0).torch

# Operators that torch marks as drawing and that draw nothing.
DRAW_NOTHING = {
    "_flash_attention_forward_no_dropout_inplace",
    "_cudnn_attention_forward_no_dropout_inplace",
    "_fused_sdp_choice",
    "_nested_tensor_softmax_with_shape",
    "random",  # torch.random is a module
    # only called by other functions of torch.nn.init, which are in the tables, or deprecated names of those
    "_no_grad_normal_",
    "_no_grad_uniform_",
}

# Operators of other devices than the CPU: they draw from the device's generator, for which there are no keys.
OF_DEVICES = {
    "_cudnn_init_dropout_state",
    "_cudnn_rnn",
    "_fill_mem_eff_dropout_mask_",
    "_fused_dropout",
    "_lstm_mps",
    "_scaled_dot_product_attention_math_for_mps",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention",
    "_triton_scaled_dot_attention",
    "miopen_rnn",
}


def drawing_operators():
    """Names of the installed torch's operators that have a generator or are marked as drawing."""
    found = set()
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        if space != "aten":
            continue
        packet = getattr(torch.ops.aten, name, None)
        overload = getattr(packet, schema.overload_name or "default", None)
        marked = overload is not None and torch.Tag.nondeterministic_seeded in overload.tags
        if marked or any("Generator" in str(argument.type) for argument in schema.arguments):
            found.add(name)
    return found


def test_every_operator_that_draws_is_in_a_table_or_out_of_reach():
    known = TAKES_GENERATOR | TAKES_NO_GENERATOR.keys()
    homes = [torch, torch.Tensor, torch._C._nn, F]
    operators = drawing_operators()
    assert len(operators) > 40
    assert {"rand", "bernoulli_", "dropout", "lstm", "rrelu_with_noise"} <= operators
    forgotten = {
        f"{home.__name__}.{name}"
        for name in operators - DRAW_NOTHING - OF_DEVICES
        for home in homes
        if callable(function := getattr(home, name, None)) and function not in known
    }
    # read and set torch's default generator; the exchanged functions of torch.random are tested beside this file
    assert forgotten <= {"torch.manual_seed", "torch.seed", "torch.initial_seed"}


@pytest.fixture(autouse=True)
def _without_a_key_afterwards():
    with preserved_generators():
        yield


@pytest.mark.filterwarnings("ignore:Singular sample detected:UserWarning")  # of torch's Wishart
@pytest.mark.parametrize("name", CALLS)
def test_a_thread_draws_what_the_seeded_default_generator_would(name):
    call = CALLS[name]
    seeded = torch.default_generator.manual_seed(SEED).get_state()
    expected = call().detach()
    assert not torch.equal(torch.default_generator.get_state(), seeded)  # it does draw
    untouched = torch.default_generator.manual_seed(1).get_state()
    scope = ThreadScope(0)
    with scope:
        scope.seed_for(KEYS, RngPurpose.SAMPLE, 0)
        found = call().detach()
    assert type(found) is type(expected)
    assert found.dtype == expected.dtype
    assert found.stride() == expected.stride()
    assert torch.equal(found, expected)
    assert torch.equal(torch.default_generator.get_state(), untouched)
