"""Guarantee: in a worker thread what takes no generator, such as dropout, draws from the thread's."""

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
SILENT_RNN = deep(nn.RNN, training=False)
SHALLOW_GRU = deep(nn.GRU, layers=1)
ATTENTION = nn.MultiheadAttention(4, 2, dropout=0.5)
SILENT_ATTENTION = nn.MultiheadAttention(4, 2, dropout=0.5).eval()
SEQUENCE = torch.ones(2, 1, 3)
PACKED = pack_sequence([torch.ones(2, 3)])


# name: (a call that draws, one that draws nothing)
CALLS = {
    "dropout": (lambda: F.dropout(x()), lambda: F.dropout(x(), training=False)),
    "dropout of nothing": (lambda: F.dropout(x(), 0.1), lambda: F.dropout(x(), 0.0)),
    "torch.dropout": (lambda: torch.dropout(x(), 0.5, True), lambda: torch.dropout(x(), 0.5, False)),
    "torch.dropout by name": (
        lambda: torch.dropout(x(), p=0.5, train=True),
        lambda: torch.dropout(x(), p=0.5, train=False),
    ),
    "torch.dropout_": (lambda: torch.dropout_(x(), 0.5, True), lambda: torch.dropout_(x(), 0.5, False)),
    "dropout1d": (lambda: F.dropout1d(x()), lambda: F.dropout1d(x(), 0.5, False)),
    "dropout2d": (lambda: F.dropout2d(x()[None, None]), lambda: F.dropout2d(x()[None, None], training=False)),
    "dropout3d": (lambda: F.dropout3d(x()[None, None]), lambda: F.dropout3d(x()[None, None], training=False)),
    "alpha_dropout": (lambda: F.alpha_dropout(x(), training=True), lambda: F.alpha_dropout(x())),
    "feature_alpha_dropout": (
        lambda: F.feature_alpha_dropout(x(), training=True),
        lambda: F.feature_alpha_dropout(x()),
    ),
    "torch.alpha_dropout": (lambda: torch.alpha_dropout(x(), 0.5, True), lambda: torch.alpha_dropout(x(), 0.5, False)),
    "torch.feature_dropout": (
        lambda: torch.feature_dropout(x(), 0.5, True),
        lambda: torch.feature_dropout(x(), 0.5, False),
    ),
    "a dropout layer": (lambda: nn.Dropout()(x()), lambda: nn.Dropout().eval()(x())),
    "rrelu": (lambda: F.rrelu(-x(), training=True), lambda: F.rrelu(-x())),
    "torch.rrelu": (lambda: torch.rrelu(-x(), 0.1, 0.3, True), lambda: torch.rrelu(-x())),
    "rrelu_": (lambda: F.rrelu_(-x(), training=True), lambda: F.rrelu_(-x())),
    "rrelu_with_noise": (
        lambda: torch._C._nn.rrelu_with_noise(-x(), x(), 0.1, 0.3, True),
        lambda: torch._C._nn.rrelu_with_noise(-x(), x()),
    ),
    "gumbel_softmax": (lambda: F.gumbel_softmax(x()), None),
    "fractional_max_pool2d": (lambda: F.fractional_max_pool2d(x()[None], 2, output_size=2), None),
    "fractional_max_pool2d with indices": (
        lambda: F.fractional_max_pool2d(x()[None], 2, output_size=2, return_indices=True),
        None,
    ),
    "fractional_max_pool3d": (lambda: F.fractional_max_pool3d(torch.ones(1, 4, 4, 4), 2, output_size=2), None),
    "pca_lowrank of a subclass": (lambda: torch.pca_lowrank(Subclass(x()), 2), None),
    "svd_lowrank of a subclass": (lambda: torch.svd_lowrank(Subclass(x()), 2), None),
    "lobpcg of a subclass": (lambda: torch.lobpcg(Subclass(torch.eye(9)), 1), None),
    "scaled_dot_product_attention": (
        lambda: F.scaled_dot_product_attention(x()[None], x()[None], x()[None], dropout_p=0.5),
        lambda: F.scaled_dot_product_attention(x()[None], x()[None], x()[None]),
    ),
    "multi-head attention": (lambda: ATTENTION(x(), x(), x()), lambda: SILENT_ATTENTION(x(), x(), x())),
    "LSTM": (lambda: LSTM(SEQUENCE), lambda: SILENT_LSTM(SEQUENCE)),
    "GRU": (lambda: GRU(SEQUENCE), lambda: SHALLOW_GRU(SEQUENCE)),
    "RNN": (lambda: RNN(SEQUENCE), lambda: SILENT_RNN(SEQUENCE)),
    "packed LSTM": (lambda: LSTM(PACKED), lambda: SILENT_LSTM(PACKED)),
    "packed GRU": (lambda: GRU(PACKED), lambda: SHALLOW_GRU(PACKED)),
}


@pytest.mark.parametrize("name", CALLS)
def test_functions_without_generator_draw_like_the_seeded_default_generator(name):
    draws, silent = CALLS[name]
    untouched = torch.default_generator.get_state()
    expected = seeded(4, draws)
    assert not torch.equal(torch.default_generator.get_state(), seeded(4, torch.default_generator.get_state))
    torch.default_generator.set_state(untouched)
    assert_equal(scoped(4, draws), expected)
    if silent is not None:
        scoped(4, silent)
    assert torch.equal(torch.default_generator.get_state(), untouched)


def assert_equal(actual, expected):
    actual_leaves = [leaf for leaf in tree_leaves(actual) if leaf is not None]
    expected_leaves = [leaf for leaf in tree_leaves(expected) if leaf is not None]
    assert len(actual_leaves) == len(expected_leaves) > 0
    assert all(map(torch.equal, actual_leaves, expected_leaves))
