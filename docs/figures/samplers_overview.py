import matplotlib.pyplot as plt
from lit_loader import (
    ClassBalancedSamplerConfig,
    EffectiveNumberSamplerConfig,
    RandomSamplerConfig,
    RepeatFactorSamplerConfig,
    WeightedSamplerConfig,
)
from long_tail_set import draw_class_mix, draw_visits, long_tail

configs = {
    "random": RandomSamplerConfig(),
    "repeat factor, t = 0.3": RepeatFactorSamplerConfig(repeat_thresh=0.3),
    "effective number, β = 0.999": EffectiveNumberSamplerConfig(),
    "weighted": WeightedSamplerConfig(),
    "class-balanced": ClassBalancedSamplerConfig(),
}
samplers = {name: config.make_sampler(long_tail()) for name, config in configs.items()}
figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 4.2), layout="constrained")
draw_class_mix(left, samplers)
draw_visits(right, samplers)
left.get_legend().remove()
figure.legend(
    *left.get_legend_handles_labels(),
    loc="outside lower center",
    ncols=3,
    frameon=False,
)
