"""Guarantee: in a worker thread functions without a generator argument, such as dropout, draw from the thread's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils._pytree import tree_leaves

from tests.support.scoped_draws import scoped, seeded


def x():
    return torch.ones(4, 4)


class Subclass(torch.Tensor):
    pass


def deep(kind, *, layers=2, training=True):
    return kind(3, 3, num_layers=layers, dropout=0.5 if layers > 1 else 0.0).train(training)


LSTM = deep(nn.LSTM)
GRU = deep(nn.GRU)
RNN = deep(nn.RNN)
SILENT_LSTM = deep(nn.LSTM, training=False)
SHALLOW_GRU = deep(nn.GRU, layers=1)
ATTENTION = nn.MultiheadAttention(4, 2, dropout=0.5)
SILENT_ATTENTION = nn.MultiheadAttention(4, 2, dropout=0.5).eval()
SEQUENCE = torch.ones(2, 1, 3)
PACKED = pack_sequence([torch.ones(2, 3)])


CALLS = {
    "dropout": lambda: F.dropout(x()),
    "dropout with a small p": lambda: F.dropout(x(), 0.1),
    "torch.dropout": lambda: torch.dropout(x(), 0.5, True),
    "torch.dropout by name": lambda: torch.dropout(x(), p=0.5, train=True),
    "torch.dropout_": lambda: torch.dropout_(x(), 0.5, True),
    "dropout1d": lambda: F.dropout1d(x()),
    "dropout2d": lambda: F.dropout2d(x()[None, None]),
    "dropout3d": lambda: F.dropout3d(x()[None, None]),
    "alpha_dropout": lambda: F.alpha_dropout(x(), training=True),
    "feature_alpha_dropout": lambda: F.feature_alpha_dropout(x(), training=True),
    "torch.alpha_dropout": lambda: torch.alpha_dropout(x(), 0.5, True),
    "torch.feature_dropout": lambda: torch.feature_dropout(x(), 0.5, True),
    "a dropout layer": lambda: nn.Dropout()(x()),
    "rrelu": lambda: F.rrelu(-x(), training=True),
    "torch.rrelu": lambda: torch.rrelu(-x(), 0.1, 0.3, True),
    "rrelu_": lambda: F.rrelu_(-x(), training=True),
    "rrelu_with_noise": lambda: torch._C._nn.rrelu_with_noise(-x(), x(), 0.1, 0.3, True),
    "gumbel_softmax": lambda: F.gumbel_softmax(x()),
    "fractional_max_pool2d": lambda: F.fractional_max_pool2d(x()[None], 2, output_size=2),
    "fractional_max_pool2d with indices": lambda: F.fractional_max_pool2d(x()[None], 2, 2, return_indices=True),
    "fractional_max_pool3d": lambda: F.fractional_max_pool3d(torch.ones(1, 4, 4, 4), 2, output_size=2),
    "pca_lowrank of a subclass": lambda: torch.pca_lowrank(Subclass(x()), 2),
    "svd_lowrank of a subclass": lambda: torch.svd_lowrank(Subclass(x()), 2),
    "lobpcg of a subclass": lambda: torch.lobpcg(Subclass(torch.eye(9)), 1),
    "attention": lambda: F.scaled_dot_product_attention(x()[None], x()[None], x()[None], dropout_p=0.5),
    "multi-head attention": lambda: ATTENTION(x(), x(), x()),
    "LSTM": lambda: LSTM(SEQUENCE),
    "GRU": lambda: GRU(SEQUENCE),
    "RNN": lambda: RNN(SEQUENCE),
    "packed LSTM": lambda: LSTM(PACKED),
    "packed GRU": lambda: GRU(PACKED),
}
SILENT_CALLS = {
    "dropout in evaluation": lambda: F.dropout(x(), training=False),
    "dropout of nothing": lambda: F.dropout(x(), 0.0),
    "torch.dropout by name": lambda: torch.dropout(x(), p=0.5, train=False),
    "torch.dropout_": lambda: torch.dropout_(x(), 0.5, False),
    "feature_alpha_dropout": lambda: F.feature_alpha_dropout(x()),
    "rrelu": lambda: F.rrelu(-x()),
    "rrelu_with_noise": lambda: torch._C._nn.rrelu_with_noise(-x(), x()),
    "attention": lambda: F.scaled_dot_product_attention(x()[None], x()[None], x()[None]),
    "multi-head attention": lambda: SILENT_ATTENTION(x(), x(), x()),
    "LSTM": lambda: SILENT_LSTM(SEQUENCE),
    "GRU of one layer": lambda: SHALLOW_GRU(SEQUENCE),
}


@pytest.mark.parametrize("name", CALLS)
def test_functions_without_generator_draw_like_the_seeded_default_generator(name):
    state = torch.default_generator.get_state()
    expected = seeded(4, CALLS[name])
    assert not torch.equal(torch.default_generator.get_state(), seeded(4, torch.default_generator.get_state))
    torch.default_generator.set_state(state)
    assert_equal(scoped(4, CALLS[name]), expected)
    assert torch.equal(torch.default_generator.get_state(), state)


@pytest.mark.parametrize("name", SILENT_CALLS)
def test_functions_that_draw_nothing_leave_the_default_generator(name):
    state = torch.default_generator.get_state()
    scoped(4, SILENT_CALLS[name])
    assert torch.equal(torch.default_generator.get_state(), state)


def assert_equal(actual, expected):
    actual_leaves = [leaf for leaf in tree_leaves(actual) if leaf is not None]
    expected_leaves = [leaf for leaf in tree_leaves(expected) if leaf is not None]
    assert len(actual_leaves) == len(expected_leaves) > 0
    assert all(map(torch.equal, actual_leaves, expected_leaves))
