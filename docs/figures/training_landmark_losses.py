"""Losses of one coordinate against its error: absolute error, smooth L1 with two values of beta, wing loss."""

import matplotlib.pyplot as plt
import torch
from lit_loader.recipes import WingLoss

pixels = torch.linspace(-24, 24, 481)
errors = pixels / 256
zeros = torch.zeros_like(errors)
curves = {
    "absolute error (default)": (errors.abs(), "-", "#0072B2"),
    "wing loss": (WingLoss()(errors, zeros), "-", "#D55E00"),
    "smooth L1, beta = 0.02": (
        torch.nn.SmoothL1Loss(reduction="none", beta=0.02)(errors, zeros),
        "--",
        "#009E73",
    ),
    "smooth L1, beta = 1": (
        torch.nn.SmoothL1Loss(reduction="none")(errors, zeros),
        ":",
        "#555555",
    ),
}

figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained", facecolor="white")
for name, (loss, style, color) in curves.items():
    axes.plot(pixels, loss, style, color=color, label=name, linewidth=2)
axes.set_xlabel("error of a coordinate, pixels of a crop of 256")
axes.set_ylabel("loss")
axes.grid(alpha=0.3)
axes.legend(loc="upper center", frameon=False)
