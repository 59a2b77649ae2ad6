import matplotlib.pyplot as plt
from lit_loader import WeightedSamplerConfig
from long_tail_set import draw_class_mix, draw_visits, long_tail

samplers = {
    f"exponent {exponent:g}": WeightedSamplerConfig(exponent=exponent).make_sampler(
        long_tail()
    )
    for exponent in (0.0, 0.5, 1.0)
}
figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3.6), layout="constrained")
draw_class_mix(left, samplers)
draw_visits(right, samplers)
