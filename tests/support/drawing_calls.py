"""Calls of torch that draw, each with a name for its special case."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import init
from torchvision import tv_tensors


def probabilities():
    return torch.full((3, 4), 0.3)


def out(function, *args):
    result = torch.empty(0)
    function(*args, out=result)
    return result


INITIAL = "uniform_ normal_ trunc_normal_ xavier_uniform_ xavier_normal_ kaiming_uniform_ kaiming_normal_ orthogonal_"

# name: a call that draws
CALLS = {
    "rand": lambda: torch.rand(3),
    "rand of a size": lambda: torch.rand((2, 3), dtype=torch.float64),
    "rand with out": lambda: out(torch.rand, 3),
    "rand with no generator": lambda: torch.rand(3, generator=None),
    "rand that requires grad": lambda: torch.rand(3, requires_grad=True),
    "rand on the cpu by name": lambda: torch.rand(3, device="cpu"),
    "randn": lambda: torch.randn(17),
    "randn, short": lambda: torch.randn(3),
    "randn with out": lambda: out(torch.randn, 17),
    "randint": lambda: torch.randint(10, (5,)),
    "randint from low": lambda: torch.randint(-5, 10, size=(5,)),
    "randint by name": lambda: torch.randint(low=3, high=2**40, size=(5,)),
    "randperm": lambda: torch.randperm(50),
    "randperm with out": lambda: out(torch.randperm, 9).long(),
    "bernoulli": lambda: torch.bernoulli(probabilities()),
    "bernoulli of p": lambda: torch.bernoulli(torch.empty(5), 0.4),
    "Tensor.bernoulli": lambda: probabilities().bernoulli(),
    "bernoulli_": lambda: torch.empty(5).bernoulli_(0.4),
    "bernoulli_ of a tensor": lambda: torch.empty(3, 4).bernoulli_(probabilities()),
    "binomial": lambda: torch.binomial(torch.full((5,), 9.0), torch.full((5,), 0.4)),
    "poisson": lambda: torch.poisson(torch.full((5,), 4.0)),
    "poisson with a positional None": lambda: torch.poisson(torch.full((5,), 4.0), None),
    "binomial with a positional None": lambda: torch.binomial(torch.full((5,), 9.0), torch.full((5,), 0.4), None),
    "multinomial": lambda: torch.multinomial(probabilities(), 2),
    "Tensor.multinomial": lambda: probabilities().multinomial(7, replacement=True),
    "multinomial, replacement by place": lambda: torch.multinomial(probabilities(), 7, True),
    "normal of floats": lambda: torch.normal(0.0, 1.0, (4,)),
    "normal of tensors": lambda: torch.normal(torch.zeros(4), torch.ones(4)),
    "normal of tensor and float": lambda: torch.normal(torch.zeros(4), 2.0),
    "normal of float and tensor": lambda: torch.normal(2.0, torch.ones(4)),
    "normal with out": lambda: torch.normal(torch.zeros(4), 1.0, out=torch.empty(4)),
    "cauchy_": lambda: torch.empty(4).cauchy_(),
    "exponential_": lambda: torch.empty(4).exponential_(2.0),
    "geometric_": lambda: torch.empty(4).geometric_(0.3),
    "log_normal_": lambda: torch.empty(4).log_normal_(),
    "normal_": lambda: torch.empty(40).normal_(1, 2),
    "random_": lambda: torch.empty(4, dtype=torch.int64).random_(),
    "random_ below": lambda: torch.empty(4).random_(9),
    "random_ between": lambda: torch.empty(4).random_(3, 9),
    "random_ from": lambda: torch.empty(4, dtype=torch.int64).random_(3, None),
    "poisson with the default generator": lambda: torch.poisson(torch.full((5,), 4.0), torch.default_generator),
    "uniform_": lambda: torch.empty(4).uniform_(-1, 1),
    "uniform_ of a view": lambda: torch.zeros(4, 4).t()[1:, ::2].uniform_(),
    "rand_like": lambda: torch.rand_like(torch.zeros(3, 4)),
    "rand_like of another type": lambda: torch.rand_like(torch.zeros(3, dtype=torch.int), dtype=torch.float64),
    "rand_like, transposed": lambda: torch.rand_like(torch.zeros(3, 4).t()),
    "rand_like, channels last": lambda: torch.rand_like(torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)),
    "rand_like, kept contiguous": lambda: torch.rand_like(torch.zeros(3, 4).t(), memory_format=torch.contiguous_format),
    "randn_like": lambda: torch.randn_like(torch.zeros(30)),
    "randn_like, transposed": lambda: torch.randn_like(torch.zeros(7, 4).t()),
    "randn_like, half": lambda: torch.randn_like(torch.zeros(30, dtype=torch.float16)),
    "randint_like": lambda: torch.randint_like(torch.zeros(5), 9),
    "randint_like between": lambda: torch.randint_like(torch.zeros(5), 3, 9),
    "randint_like by name": lambda: torch.randint_like(torch.zeros(5), low=3, high=9),
    "randint_like by half a name": lambda: torch.randint_like(torch.zeros(5), high=9),
    "randint_like, transposed": lambda: torch.randint_like(torch.zeros(3, 4).t(), 2**20),
    "complex rand": lambda: torch.rand(3, dtype=torch.complex64),
    "complex randn": lambda: torch.randn(3, dtype=torch.complex64),
    "a subclass of tensor": lambda: torch.rand_like(tv_tensors.Image(torch.zeros(3, 4, 4))),
    "a subclass in place": lambda: tv_tensors.Image(torch.zeros(3, 4, 4)).uniform_(),
    "torch's default generator by name": lambda: torch.rand(3, generator=torch.default_generator),
    "random_split": lambda: torch.tensor(torch.utils.data.random_split(range(9), [4, 5])[0].indices),
    "a random sampler": lambda: torch.tensor(list(torch.utils.data.RandomSampler(range(9)))),
    "a weighted sampler": lambda: torch.tensor(list(torch.utils.data.WeightedRandomSampler([1.0, 2.0, 3.0], 9))),
    "thread_safe_generator": lambda: torch.rand(3, generator=getattr(torch, "thread_safe_generator", lambda: None)()),
    "a Sobol sequence": lambda: torch.quasirandom.SobolEngine(2, scramble=True).draw(4),
    "make_tensor": lambda: torch.testing.make_tensor((4,), dtype=torch.float32, device="cpu"),
    "checkpoint": lambda: torch.utils.checkpoint.checkpoint(
        lambda x: x * torch.rand(3), torch.ones(3, requires_grad=True), use_reentrant=False
    ),
    "under a device": lambda: under_device("cpu"),
    "pca_lowrank": lambda: torch.pca_lowrank(torch.arange(400.0).reshape(20, 20).sin(), 2)[0],
    "svd_lowrank": lambda: torch.svd_lowrank(torch.arange(400.0).reshape(20, 20).sin(), 2)[0],
    "lobpcg": lambda: torch.lobpcg(torch.diag(torch.arange(1.0, 21)), 1)[1],
    "a layer": lambda: nn.Linear(3, 4).weight,
    "a convolution": lambda: nn.Conv2d(3, 4, 2).weight,
    "an embedding": lambda: nn.Embedding(5, 4).weight,
    "an LSTM": lambda: nn.LSTM(3, 4).weight_hh_l0,
    "attention": lambda: nn.MultiheadAttention(4, 2).in_proj_weight,
    "a transformer": lambda: nn.TransformerEncoderLayer(4, 2, dim_feedforward=4).linear2.weight,
    **{name: lambda name=name: getattr(init, name)(torch.empty(4, 5)) for name in INITIAL.split()},
    "sparse_": lambda: init.sparse_(torch.empty(4, 5), 0.3),
    "init with everything by place": lambda: init.uniform_(torch.empty(4), 2.0, 3.0, None),
}


def under_device(name):
    with torch.device(name):
        return torch.rand(3)


def distributions():
    d = torch.distributions
    half = torch.tensor([0.3, 0.7])
    eye = torch.eye(2)
    return {
        "Bernoulli": d.Bernoulli(half),
        "Beta": d.Beta(half, half),
        "Binomial": d.Binomial(7, half),
        "Categorical": d.Categorical(half),
        "Cauchy": d.Cauchy(half, half),
        "Chi2": d.Chi2(half),
        "ContinuousBernoulli": d.ContinuousBernoulli(half),
        "Dirichlet": d.Dirichlet(half),
        "Exponential": d.Exponential(half),
        "FisherSnedecor": d.FisherSnedecor(half, half),
        "Gamma": d.Gamma(half, half),
        "Geometric": d.Geometric(half),
        "Gumbel": d.Gumbel(half, half),
        "HalfNormal": d.HalfNormal(half),
        "Kumaraswamy": d.Kumaraswamy(half, half),
        "LKJCholesky": d.LKJCholesky(3),
        "Laplace": d.Laplace(half, half),
        "LogNormal": d.LogNormal(half, half),
        "LogisticNormal": d.LogisticNormal(half, half),
        "LowRankMultivariateNormal": d.LowRankMultivariateNormal(half, torch.ones(2, 1), half),
        "MixtureSameFamily": d.MixtureSameFamily(d.Categorical(half), d.Normal(half, half)),
        "Multinomial": d.Multinomial(7, half),
        "MultivariateNormal": d.MultivariateNormal(half, eye),
        "NegativeBinomial": d.NegativeBinomial(7, half),
        "Normal": d.Normal(half, half),
        "OneHotCategorical": d.OneHotCategorical(half),
        "Pareto": d.Pareto(half, half),
        "Poisson": d.Poisson(half),
        "RelaxedBernoulli": d.RelaxedBernoulli(half, half),
        "StudentT": d.StudentT(half),
        "Uniform": d.Uniform(half, half + 1),
        "VonMises": d.VonMises(half, half),
        "Weibull": d.Weibull(half, half),
        "Wishart": d.Wishart(torch.tensor(9.0), eye),
    }


CALLS |= {
    f"distribution {name}": lambda distribution=distribution: distribution.sample((3,))
    for name, distribution in distributions().items()
}
