"""A long tail
===========

Real data sets have a long tail: a few classes with thousands of objects, and others with
ten. A model that is trained on such a set learns to ignore the rare classes. In this
tutorial, you compare three samplers on a set with 90 discs for each star, count which
classes they deliver, and train the same classifier with and without balance.
"""

# %%
# The data
# --------
# We draw discs, squares and stars. Of 100 objects in the training images, 90 are discs, 9
# are squares and 1 is a star. The test images have as many stars as discs, because a recall
# that is measured on a handful of stars would mean nothing.

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
    ShapesSource,
)
from lit_loader.recipes import ClassificationTask, WarmupCosineLR, classifier_small

folder = tempfile.TemporaryDirectory()
draw = partial(ShapesSource, cache_dir=folder.name, progress=False)
source = draw(num_images={"train": 220}, class_shares=(0.90, 0.09, 0.01))
test_source = draw(num_images={"test": 60}, class_shares=(0.34, 0.33, 0.33))

# %%
# The expected class mix
# ----------------------
# A data module knows its class mix before it opens an image, because samplers work on the
# table of annotations. The last column of its summary is the share of each class that the
# model will see. No list and no XML file has to be rewritten.

datamodule = DetectionDataModule(
    source, batch_size=8, train_sampler=ClassBalancedSamplerConfig()
)
print("\n".join(datamodule.summary().splitlines()[:8]))

# %%
# The counted class mix
# ---------------------
# A sampler is an iterable of image indices. So let each of three samplers draw an
# epoch, and count the objects in the images that it draws:
#
# - ``RandomSamplerConfig`` visits every image once.
# - ``RepeatFactorSamplerConfig`` repeats images with rare classes, by the square root of
#   their rarity.
# - ``ClassBalancedSamplerConfig`` visits each class equally often, and takes an image that
#   contains it.

samplers = {
    "random": RandomSamplerConfig(),
    "repeat factor": RepeatFactorSamplerConfig(repeat_thresh=1.0),
    "class-balanced": ClassBalancedSamplerConfig(),
}
(table,) = source.tables("train")
counts_of_images = table.image_class_counts()  # a row for each image
shares = {}
for name, config in samplers.items():
    image_numbers = list(config.make_sampler(table))
    counts = counts_of_images[image_numbers].sum(axis=0)
    shares[name] = counts / counts.sum()
    percent = np.round(100 * shares[name], 1)
    print(f"{name:15} {percent} % in {len(image_numbers)} images")

# %%
# With the class-balanced sampler, stars appear several times as often. Their share
# stays below a third, and no sampler of whole images could reach it: an image with a
# star also brings its discs. Crops of single objects have no such limit.
#
# Train on crops of objects
# -------------------------
# With ``sample_unit="object"``, each object is a sample. We train the same small classifier
# twice, with the same seed and the same number of steps. Only the sampler differs.


def recall_with(sampler):
    seed_everything(0, verbose=False)
    crops = partial(
        ClassificationDataModule,
        sample_unit="object",
        batch_size=16,
        train_transforms={"size": 32},
        val_transforms={"size": 32},
    )
    training = crops(source, train_sampler=sampler)
    task = ClassificationTask(
        partial(classifier_small, channels=16, head_channels=32),
        class_names=training.class_names,
        optimizer=partial(torch.optim.AdamW, lr=0.01),
        scheduler=partial(WarmupCosineLR, warmup_steps=10),
    )
    trainer = Trainer(
        accelerator="cpu", max_epochs=4, limit_val_batches=0, barebones=True
    )
    trainer.fit(task, datamodule=training)
    trainer.test(task, datamodule=crops(test_source), verbose=False)
    return task.test_scores.recall


# Lightning's hints would hide the output; a small model needs no second thread.
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")
torch.set_num_threads(1)
recalls = {name: recall_with(samplers[name]) for name in ("random", "class-balanced")}
for name, recall in recalls.items():
    print(name, {label: round(value, 2) for label, value in recall.items()})

# %%
# Without balance, a star comes once among ninety discs, and the classifier never answers
# "star". With balance it finds most of the stars in the test images, although the training
# set has only nine different ones. Balance shows them more often, but draws no new ones. On
# harder data, also watch the recall of the frequent classes, which now come less often.
#
# The result
# ----------
# Left, the class mix of an epoch of whole images. Right, the recall of both classifiers.
# The axis on the left is logarithmic.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
colors = {"random": "#0072B2", "repeat factor": "#E69F00", "class-balanced": "#009E73"}
for i, (name, mix) in enumerate(shares.items()):
    left.bar(np.arange(3) + 0.27 * i, 100 * mix, 0.25, color=colors[name], label=name)
for i, (name, recall) in enumerate(recalls.items()):
    heights = list(recall.values())
    right.bar(np.arange(3) + 0.35 * i, heights, 0.33, color=colors[name], label=name)
left.set(yscale="log", ylabel="share of the objects, %")
right.set(ylabel="recall on the test images")
left.set_xticks(np.arange(3) + 0.27, table.class_names)
right.set_xticks(np.arange(3) + 0.175, table.class_names)
left.legend()
plt.show()

# %%
# Next steps
# ----------
# - :doc:`/samplers/index` has a table of problems and samplers, and the formula of each.
# - :doc:`/samplers/changing-balance` begins with natural shares and ends with equal ones.
# - :doc:`/augmentation/mixing` pastes rare objects into other images, so that they come in
#   new combinations.
