import matplotlib.pyplot as plt
from lit_loader import ClassAwareSampler, ClassBalancedSampler, RandomSampler
from long_tail_set import draw_batches

labels = [0] * 60 + [1] * 30 + [2] * 8 + [3] * 2
samplers = {
    "RandomSampler": RandomSampler(len(labels)),
    "ClassBalancedSampler": ClassBalancedSampler(labels),
    "ClassAwareSampler": ClassAwareSampler(labels),
}
classes = {
    name: [labels[index] for index in sampler.order(seed=0, epoch=0)[0:40].tolist()]
    for name, sampler in samplers.items()
}
figure, axes = plt.subplots(figsize=(8.5, 2.5), layout="constrained")
draw_batches(axes, classes)
