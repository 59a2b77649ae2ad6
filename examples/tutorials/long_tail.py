"""A long tail
===========

Real data sets have a long tail: a few classes with thousands of objects and others with ten. A model trained on such a
set learns to ignore the rare classes. In this tutorial, you balance a set of 90 to 1 with three samplers, compare the
class mix that each announces with the one that arrives, and train the same classifier with and without balance.
"""

# %%
# The data
# --------
# We draw discs, squares and stars. Of 100 objects in the training images 90 are discs, 9 are squares and 1 is a star.
# The test images have as many stars as discs: with a handful of stars, a measured recall would mean nothing.

import logging
import tempfile
import warnings
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import torch
from lightning.pytorch import Trainer, seed_everything
from lit_loader import (
    ClassBalancedSamplerConfig,
    ClassificationDataModule,
    DetectionDataModule,
    RandomSamplerConfig,
    RepeatFactorSamplerConfig,
    SamplerConfig,
    VocSource,
)
from lit_loader.datasets import draw_shapes
from lit_loader.recipes import ClassificationTask, WarmupCosineLR, classifier_small

# Lightning reports devices, and advises more workers than this small set needs.
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")
torch.set_num_threads(
    1
)  # the model is so small that a second thread would only slow it down

folder = tempfile.TemporaryDirectory()
draw = partial(draw_shapes, folder.name, progress=False)
source = VocSource(
    draw(num_images={"train": 240, "val": 2}, class_shares=(0.90, 0.09, 0.01)),
    test=None,
)
test_source = VocSource(
    draw(num_images={"test": 60}, class_shares=(0.34, 0.33, 0.33)), train=None, val=None
)

# %%
# The expected class mix
# ----------------------
# A data module knows its class mix before it opens an image, because samplers work on the table of annotations. The
# last column of the summary is the mix that the model will see. No list and no XML file is rewritten.

datamodule = DetectionDataModule(
    source, batch_size=8, train_sampler=ClassBalancedSamplerConfig()
)
print("\n".join(datamodule.summary().splitlines()[:8]))

# %%
# The counted class mix
# ---------------------
# We count the objects in the batches of one epoch under three samplers, next to the expected shares.
#
# - ``RandomSamplerConfig`` visits every image once.
# - ``RepeatFactorSamplerConfig`` visits images of rare classes several times, by the square root of their rarity.
# - ``ClassBalancedSamplerConfig`` draws each class equally often, then an image that contains it.

samplers = {
    "random": RandomSamplerConfig(),
    "repeat factor": RepeatFactorSamplerConfig(repeat_thresh=1.0),
    "class-balanced": ClassBalancedSamplerConfig(),
}
expected, counted = {}, {}
for name, sampler in samplers.items():
    datamodule = DetectionDataModule(
        source, batch_size=8, train_sampler=sampler, first_label=0
    )
    expected[name] = datamodule.summaries(["train"])[0].expected_mix
    batches = datamodule.batches("train", num_batches=1000)
    labels = np.concatenate(
        [target["labels"] for _, targets in batches for target in targets]
    )
    counted[name] = np.bincount(labels, minlength=3) / len(labels)
    print(
        f"{name:15}",
        "expected",
        expected[name].round(3),
        "counted",
        counted[name].round(3),
        len(labels),
        "objects",
    )

# %%
# The star now has several times its natural share. It does not reach a third, and no sampler of whole images could do
# that: an image with a star also brings its discs. Samples of single objects have no such limit.
#
# Training on crops of objects
# ----------------------------
# ``sample_unit="object"`` makes a sample of each object. We train the same small classifier twice, with the same seed
# and the same number of steps. Only the sampler differs. Note how few different stars there are: balance shows them
# more often, half of them mirrored, but it draws no new ones.


def recall_with(sampler: SamplerConfig) -> list[float]:
    """Train a classifier with a sampler, and return its recall of each class on the test images."""
    seed_everything(0, verbose=False)
    transforms = {"size": 48, "to_float": False}
    settings = {
        "sample_unit": "object",
        "batch_size": 32,
        "train_transforms": transforms,
        "num_workers": 2,
    }
    training = ClassificationDataModule(source, train_sampler=sampler, **settings)
    testing = ClassificationDataModule(test_source, **settings)
    model = partial(classifier_small, channels=16, head_channels=32)
    steps = {
        "optimizer": partial(torch.optim.AdamW, lr=0.01),
        "scheduler": partial(WarmupCosineLR, warmup_steps=10),
    }
    task = ClassificationTask(model, class_names=training.class_names, **steps)
    quiet = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    trainer = Trainer(
        max_epochs=9, limit_val_batches=0, accelerator="cpu", logger=False, **quiet
    )
    trainer.fit(task, datamodule=training)
    trainer.test(task, datamodule=testing, verbose=False)
    return list(task.test_scores.recall.values())


recalls = {name: recall_with(samplers[name]) for name in ("random", "class-balanced")}
for name, recall in recalls.items():
    print(f"{name:15} recall of disc, square, star: {np.round(recall, 2)}")

# %%
# Without balance, each star comes once an epoch among a hundred discs, and the classifier never answers "star". With
# balance it finds most of the stars in the test images, although it has seen only ten different ones. Discs do not
# suffer here, because so many of them remain. On harder data, watch the recall of the frequent classes.
#
# The picture
# -----------
# Left, the class mix of an epoch of whole images: expected (bars) and counted (black). Right, the recall
# of the two classifiers.

names = ("disc", "square", "star")
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
colors = {"random": "#0072B2", "repeat factor": "#E69F00", "class-balanced": "#009E73"}
for place, (name, shares) in enumerate(expected.items()):
    x = np.arange(3) + 0.27 * (place - 1)
    left.bar(x, shares, width=0.25, color=colors[name], label=name)
    left.plot(x, counted[name], "_", color="black", markersize=14)
left.set_yscale("log")
left.set_ylabel("share of the objects of an epoch")
for place, (name, recall) in enumerate(recalls.items()):
    right.bar(
        np.arange(3) + 0.35 * (place - 0.5),
        recall,
        width=0.33,
        color=colors[name],
        label=name,
    )
right.set_ylabel("recall on the test images")
for axes in (left, right):
    axes.set_xticks(range(3), names)
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# Next steps
# ----------
# - :doc:`/samplers/index` has a table of problems and samplers, and the formula of each.
# - :doc:`/samplers/changing-balance` begins with natural shares and ends with equal ones.
# - :doc:`/augmentation/mixing` pastes rare objects into other images, which adds new combinations.
