import matplotlib.pyplot as plt
import torch
from drawn_images import NAMES, shapes
from lit_loader import BatchMixing, ClassBalancedSamplerConfig, ClassificationDataModule

MIXES = {
    "no mixing": None,
    "mixup=1.0,\nmixup_alpha=1.0": BatchMixing(mixup=1.0, mixup_alpha=1.0),
    "cutmix=1.0": BatchMixing(cutmix=1.0),
}
figure, panels = plt.subplots(3, 6, figsize=(10, 5.4), layout="constrained")
for row, (title, mixing) in enumerate(MIXES.items()):
    datamodule = ClassificationDataModule(
        shapes(),
        sample_unit="object",
        batch_size=6,
        mixing=mixing,
        train_sampler=ClassBalancedSamplerConfig(),
        train_transforms={"size": 96, "margin": 0.3, "hflip": 0.0, "to_float": False},
        num_workers=0,
        seed=7,
    )
    batch = datamodule.first_batch("train")
    labels = batch.labels
    if mixing is None:
        labels = torch.nn.functional.one_hot(labels, 3).float()
    for column, (image, shares) in enumerate(zip(batch.images, labels, strict=True)):
        axes = panels[row, column]
        axes.imshow(image.permute(1, 2, 0))
        parts = [
            f"{NAMES[c]} {share:.2g}"
            for c, share in enumerate(shares.tolist())
            if share > 0.005
        ]
        axes.set_title(", ".join(parts), fontsize=8)
        axes.set_xticks([])
        axes.set_yticks([])
    panels[row, 0].set_ylabel(title, fontsize=9)
