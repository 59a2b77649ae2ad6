"""Several sources in one run
==========================

Training images often have several origins: two labelling teams, a public data set and
your own photographs. Their formats and class names differ, and a class that one team
labels may be missing from another's files. This tutorial trains a detector on two such
sets at once: you rename classes, declare the class that one set does not label, and fix
the share of each set in every batch.
"""

# %%
# Two sets that do not fit together
# ---------------------------------
# The set ``lab`` is in VOC format and labels discs, squares and stars. The set ``web`` is
# in COCO format. It calls a disc a ``ball``, and its annotators ignored stars: stars are
# visible in its images, but have no boxes. Both sets are drawn here, so that there is
# nothing to download.

import tempfile
import textwrap
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from lit_loader import (
    DetectionDataModule,
    MixedSource,
    ShapesSource,
    open_source,
    write_annotations,
)
from lit_loader.inspection import draw_image
from lit_loader.recipes import DetectionTask, fcos_small

warnings.filterwarnings("ignore", module="lightning")
torch.set_num_threads(1)
folder = Path(tempfile.mkdtemp())
draw = partial(ShapesSource, class_shares=(0.4, 0.3, 0.3), cache_dir=str(folder))

lab = draw(num_images={"train": 60, "val": 12}, progress=False)
shapes = draw(num_images={"train": 20, "val": 8}, seed=1, progress=False)
for stage in ("train", "val"):
    (table,) = shapes.tables(stage)
    # None drops the boxes of a class and keeps its images.
    table = table.with_renamed_classes({"disc": "ball", "star": None})
    write_annotations("coco", table, folder / "web", f"{stage}.json", allow_loss=True)
(table.root / "JPEGImages").rename(folder / "web" / "JPEGImages")

# %%
# `open_source` detects the format of a folder and its splits. A source has one table of
# annotations for each training set, with its classes and their counts.

web = open_source(folder / "web", progress=False)
for name, source in {"lab": lab, "web": web}.items():
    (table,) = source.tables("train")
    print(
        name, dict(zip(table.class_names, table.class_counts().tolist(), strict=True))
    )

# %%
# What needs to be decided
# ------------------------
# `MixedSource` joins any number of sources, but it does not guess. Are ``ball`` and
# ``disc`` the same class? And are there stars in the images of ``web``? If there are,
# training on them as background would teach the detector to overlook stars. So the error
# lists what differs, and the arguments that settle it.

try:
    MixedSource({"lab": lab, "web": web}).tables("train")
except ValueError as error:
    print(textwrap.fill(str(error), width=80))

# %%
# Rename classes, and declare missing ones
# ----------------------------------------
# - ``classes`` renames the classes of a source.
# - ``missing`` declares classes without boxes: ``"unlabelled"`` if their objects may be
#   visible, ``"absent"`` if there are none.
# - ``ratio`` with ``ratio_per="batch"`` fixes the mix: every batch of four images has
#   three of ``lab`` and one of ``web``.

mixed = MixedSource(
    {"lab": lab, "web": web},
    classes={"web": {"ball": "disc"}},
    missing={"web": "unlabelled"},
    ratio={"lab": 3, "web": 1},
    ratio_per="batch",
)
datamodule = DetectionDataModule(mixed, batch_size=4, seed=0, num_workers=0)
print(datamodule.class_names)

# %%
# Count the mix
# -------------
# To check the ratio, count the images of ``web`` in each batch. Only their targets have a
# field ``unlabelled``, the labels of the classes that were not annotated.
#
# For comparison, count two other mixes. Without ``ratio``, an epoch is one epoch of each
# source in random order. With ``ratio_per="epoch"``, the shares are exact over an epoch,
# here one to one, and the smaller source is repeated.

mixes = {
    "ratio per batch": mixed,
    "no ratio": replace(mixed, ratio=None, ratio_per="epoch"),
    "ratio per epoch": replace(mixed, ratio={"lab": 1, "web": 1}, ratio_per="epoch"),
}
counts_by_mix = {}
for name, source in mixes.items():
    batches = DetectionDataModule(source, batch_size=4, seed=0).batches(
        "train", num_batches=100
    )
    counts = [
        sum("unlabelled" in target for target in targets) for _, targets in batches
    ]
    counts_by_mix[name] = counts
    print(f"{name:15} {counts}")

# %%
# Only the first mix has one image of ``web`` in every batch. The others vary by chance,
# and some of their batches have no image of ``web`` at all.
#
# Check the gradient of stars
# ---------------------------
# A detector such as FCOS predicts a score for every class at every place of the image.
# The annotations of ``web`` do not say where stars are, so its images must not change the
# scores of stars. To see that they do not, compute the loss of one image of each source,
# and look at the gradient that reaches the last layer's weights of each class.

torch.manual_seed(0)
detector = partial(fcos_small, channels=8, head_channels=32, min_size=96)
task = DetectionTask(detector, class_names=datamodule.class_names)
scores = task.model.head.classification_head.cls_logits
images, targets = datamodule.first_batch("train")
for name, row in {"lab": 0, "web": 3}.items():
    task.zero_grad()
    task.training_step((images[row : row + 1], targets[row : row + 1]), 0).backward()
    gradients = scores.weight.grad.abs().sum(dim=(1, 2, 3))[1:]  # 0 is the background
    for class_name, gradient in zip(datamodule.class_names, gradients, strict=True):
        print(f"{name} {class_name:6} {gradient:.3f}")

# %%
# The gradient of stars is exactly 0 for the image of ``web``: the loss ignores the class
# there. So do the metrics. Validation scores the sources together (``val/map``) and each
# alone (``val/lab/map`` and ``val/web/map``).
#
# The result
# ----------
# Left, an image of each source with its boxes: in ``web``, stars have none. Right, the
# number of images of each source in the batches of an epoch, with and without a ratio.

figure, axes = plt.subplots(2, 2, figsize=(9, 5), width_ratios=(1, 2), layout="tight")
for ax, name, source in zip(axes[:, 0], ("lab", "web"), (lab, web), strict=True):
    (table,) = source.tables("train")
    ax.imshow(draw_image(table, 0).permute(1, 2, 0))
    ax.set_title(f"an image of {name}")
    ax.set_axis_off()
for ax, mix in zip(axes[:, 1], ("ratio per batch", "no ratio"), strict=True):
    counts = counts_by_mix[mix]
    ax.bar(range(len(counts)), 4, color="#c0c0c0", label="lab")
    ax.bar(range(len(counts)), counts, color="#0072b2", label="web")
    ax.set(title=mix, ylabel="images in the batch", yticks=range(5))
ax.set_xlabel("batch of the epoch")
ax.legend(loc="upper right")
plt.show()

# %%
# Next steps
# ----------
# - The same run from the command line:
#   ``lit-loader train dataset=mixed 'dataset.sources={lab: FOLDER, web: FOLDER}'``, with
#   the other arguments as ``dataset.classes`` and so on.
# - ``print(datamodule.summary())`` lists objects and expected shares by class and source.
# - :doc:`/data/several-sources` has all arguments and their limits.
