"""Several sources in one run
==========================

Annotations often have several origins: two labelling teams, a public data set and your own photographs. They have
different formats and different class names, and one of them may not label a class at all. This tutorial trains on two
such sets at once. It renames their classes, declares the class that is missing, fixes the number of images of each
source in every batch, and counts the batches to check it.
"""

# %%
# Two sets that do not fit together
# ---------------------------------
# We draw two small sets of shapes. The first one, ``lab``, is in VOC format and labels discs, squares and stars. The
# second one, ``web``, is in COCO format, calls a disc a ``ball``, and its annotators ignored stars: stars are visible
# in its images, but they have no boxes.

import shutil
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
from lit_loader.recipes import DetectionTask, fcos_small

warnings.filterwarnings("ignore", module="lightning")

folder = Path(tempfile.mkdtemp())
settings = {"cache_dir": str(folder), "progress": False}
drawing = {"class_shares": (0.4, 0.3, 0.3), **settings}

lab = ShapesSource(num_images={"train": 60, "val": 12}, **drawing)
lab.prepare()

shapes = ShapesSource(num_images={"train": 20, "val": 8}, seed=1, **drawing)
for stage in ("train", "val"):
    (table,) = shapes.tables(stage)
    # None drops the boxes of a class and keeps its images.
    table = table.with_renamed_classes({"disc": "ball", "star": None})
    write_annotations("coco", table, folder / "web", f"{stage}.json", allow_loss=True)
shutil.copytree(table.root / "JPEGImages", folder / "web" / "JPEGImages")

web = open_source(folder / "web", **settings)
for name, source in {"lab": lab, "web": web}.items():
    (table,) = source.tables("train")
    print(name, table.class_names, table.class_counts())

# %%
# What happens without settings
# -----------------------------
# A :py:class:`~lit_loader.MixedSource` joins any number of sources. It refuses to guess. ``ball`` and ``disc`` may be
# the same thing or not, and a class without boxes in one source may be visible there or not. Treating visible stars as
# background would teach the model to overlook stars, so the error asks for the meaning of the missing
# classes.

try:
    MixedSource({"lab": lab, "web": web}).tables("train")
except ValueError as error:
    print(textwrap.fill(str(error), width=78))

# %%
# Rename classes, and declare missing ones
# ----------------------------------------
# ``classes`` renames the classes of a source. ``missing`` says how to treat a class without boxes: ``"unlabelled"`` if
# its objects may be visible, ``"absent"`` if there are none. ``ratio`` and ``ratio_per="batch"`` fix the mix: every
# batch of four has three images of ``lab`` and one of ``web``. ``print(datamodule.summary())`` shows the objects and
# expected shares of each class and source.

source_mix = MixedSource(
    {"lab": lab, "web": web},
    classes={"web": {"ball": "disc"}},
    missing={"web": "unlabelled"},
    ratio={"lab": 3, "web": 1},
    ratio_per="batch",
)
datamodule = DetectionDataModule(source_mix, batch_size=4, seed=0, num_workers=0)
print(datamodule.class_names)

# %%
# Count the mix
# -------------
# The targets of an image of ``web`` have a field ``unlabelled`` with the labels of the classes that were not annotated
# there. We use it to tell the sources apart. Every batch has exactly one image of ``web``. Here, 20 batches use each of
# the 20 images of ``web`` and the 60 of ``lab`` once.


def web_images_per_batch(datamodule: DetectionDataModule) -> list[int]:
    """Return the number of images of ``web`` in each batch of an epoch."""
    datamodule.setup("fit")
    loader = datamodule.train_dataloader()
    return [sum("unlabelled" in target for target in targets) for _, targets in loader]


counts_by_mix = {"ratio per batch": web_images_per_batch(datamodule)}
print(counts_by_mix["ratio per batch"])

# %%
# Without ``ratio``, an epoch is one epoch of each source in random order, and the mix of a batch varies. With
# ``ratio_per="epoch"`` the shares of the epoch are exact, here 1 to 1, but the mix of a batch varies. The small source
# is then repeated: no image comes again before all images of its source have come.

mixes = {
    "no ratio": replace(source_mix, ratio=None, ratio_per="epoch"),
    "ratio per epoch": replace(
        source_mix, ratio={"lab": 1, "web": 1}, ratio_per="epoch"
    ),
}
for name, source in mixes.items():
    mixed = DetectionDataModule(source, batch_size=4, seed=0, num_workers=0)
    counts_by_mix[name] = web_images_per_batch(mixed)
    print(name, counts_by_mix[name])

# %%
# Look at the gradient
# --------------------
# A detector such as FCOS predicts a score of each class at each place of the image. The annotations of ``web`` do not
# say whether a star is there, so the loss must not depend on the scores of stars. We compute the loss of one image of
# each source, and look at the gradient that reaches the last layer's weights of each class. (Label 0 is the background,
# which FCOS does not use.)

torch.manual_seed(0)
detector = partial(fcos_small, channels=8, head_channels=32, min_size=96)
task = DetectionTask(detector, class_names=datamodule.class_names)
scores = task.model.head.classification_head.cls_logits
images, targets = next(iter(datamodule.train_dataloader()))
for name, row in {"lab": 0, "web": 3}.items():
    task.zero_grad()
    task.training_step((images[row : row + 1], targets[row : row + 1]), 0).backward()
    sums = scores.weight.grad.abs().sum(dim=(1, 2, 3))[1:].tolist()
    for class_name, total in zip(datamodule.class_names, sums, strict=True):
        print(name, class_name, f"{total:.3f}")

# %%
# The gradient of stars is exactly 0 for the image of ``web``. All metrics ignore stars there as well, and validation
# scores the sources together (``val/map``) and each alone (``val/lab/map``, ``val/web/map``).
#
# The picture shows one image of each source with its boxes, and the number of images of ``web`` in each batch of an
# epoch. In the app, the same run is ``lit-loader train dataset=mixed 'dataset.sources={lab: FOLDER, web: FOLDER}'``
# with the other arguments as ``dataset.classes`` and so on.

panels = [["lab", *counts_by_mix], ["web", *counts_by_mix]]
_, axes = plt.subplot_mosaic(panels, figsize=(11, 4.4), layout="tight")
for name, row in {"lab": 0, "web": 3}.items():
    axes[name].imshow(images[row].permute(1, 2, 0))
    axes[name].set(title=f"image of {name}", xticks=[], yticks=[])
    for xmin, ymin, xmax, ymax in targets[row]["boxes"].tolist():
        box = plt.Rectangle((xmin, ymin), xmax - xmin, ymax - ymin, fill=False)
        box.set(edgecolor="#d55e00", linewidth=2)
        axes[name].add_patch(box)
for name, counts in counts_by_mix.items():
    batches = range(len(counts))
    lab_counts = [4 - count for count in counts]
    axes[name].bar(batches, counts, color="#0072b2", label="web")
    axes[name].bar(batches, lab_counts, bottom=counts, color="#c0c0c0", label="lab")
    axes[name].set(
        title=name, xlabel="batch of the epoch", ylim=(0, 4), yticks=range(5)
    )
axes["ratio per batch"].set_ylabel("images in the batch")
axes["ratio per batch"].legend(loc="upper right")
plt.show()
