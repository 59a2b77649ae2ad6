"""From txt lists to one XML set that trains everything
====================================================

A team has two data sets: boxes in VOC XML, which train a detector, and txt lists with
boxes, points and attributes, which train a net for landmarks. Rare objects are repeated in
the lists by a script. This tutorial converts the lists to XML, merges both sets, and trains
boxes, points and attributes in one run. A sampler balances the classes, so no file has to
be rewritten for it.
"""

# %%
# Two data sets in two formats
# ----------------------------
# The images are drawn, so there is nothing to download: 75 % of the objects are discs, 20 %
# are squares and 5 % are stars. Squares and stars have points at their corners, and every
# object has a finish: plain, dotted or hollow. The folder ``boxes`` has VOC XML, from which
# we remove points and finish. The folder ``lists`` has a txt file for each split, with one
# object per line.

import logging
import re
import tempfile
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from lightning.pytorch import Trainer, seed_everything
from lit_loader import (
    ClassBalancedSamplerConfig,
    MultiTaskDataModule,
    VocSource,
    concatenate,
    read_annotations,
    write_annotations,
)
from lit_loader.datasets import draw_shapes
from lit_loader.recipes import (
    MultiTask,
    WarmupCosineLR,
    fcos_small,
    model_kwargs_from_datamodule,
)

folder = Path(tempfile.mkdtemp()).resolve()
num_images = {"train": 160, "val": 20, "test": 40}
shares = {"class_shares": (0.75, 0.2, 0.05), "finish_shares": (0.5, 0.3, 0.2)}
draw = partial(
    draw_shapes, folder, num_images=num_images, image_size=64, progress=False, **shares
)
draw(objects_per_image=(1, 3), seed=1).rename(folder / "boxes")
draw(objects_per_image=(1, 3), seed=2).rename(folder / "lists")

points_and_finish = re.compile(r"(?s)\s*<(schema|keypoints|attributes)>.*?</\1>")
for path in (folder / "boxes" / "Annotations").rglob("*.xml"):
    path.write_text(points_and_finish.sub("", path.read_text()))

columns = "path class box points_v attribute:finish"
for split in num_images:
    table = read_annotations("voc", folder / "lists", split)
    options = {"columns": columns, "image_dir": "JPEGImages"}
    write_annotations(
        "keypoints_txt", table, folder / "lists", f"{split}.txt", **options
    )

lines = (folder / "lists" / "train.txt").read_text().splitlines()
print(f"{len(lines)} lines, such as:", *lines[:2], sep="\n")

# %%
# Do not balance in the lists
# ---------------------------
# A line is an object, but the sample of a detector is an image. If a script writes each
# line of a star ten times, every star becomes ten boxes at the same place:

repeated = [line for line in lines for _ in range(10 if " star " in line else 1)]
(folder / "lists" / "repeated.txt").write_text("\n".join(repeated))
list_options = {
    "columns": columns,
    "schema": table.keypoint_schema,
    "image_dir": "lists/JPEGImages",
}
repeated = read_annotations(
    "keypoints_txt", folder, "lists/repeated.txt", **list_options
)
print(dict(zip(repeated.class_names, repeated.class_counts().tolist(), strict=True)))

# %%
# So convert the original lists, and leave the balance to the sampler.
#
# Convert and merge
# -----------------
# To convert a single set, use ``lit-loader convert keypoints_txt``, which needs no code. To
# merge two sets, take three steps for each split:
#
# - `read_annotations` reads each set into a table. ``columns`` names the columns of the
#   list, and ``schema`` names the points. Both sets are read with the same root folder, so
#   that the paths of images are unique.
# - `concatenate` joins the tables. Objects of the VOC files get absent points and no finish.
# - `write_annotations` writes the unified XML: VOC, with points and attributes inside
#   ``<object>``. Other programs that read VOC ignore them. The images stay in their folders.

xml_options = {
    "image_dir": "boxes/JPEGImages",
    "annotation_dir": "boxes/Annotations",
    "split_dir": "boxes/ImageSets/Main",
}
for split in num_images:
    boxes = read_annotations("voc", folder, split, **xml_options)
    list_file = f"lists/{split}.txt"
    lists = read_annotations("keypoints_txt", folder, list_file, **list_options)
    merged = concatenate([boxes, lists])
    image_ids = [path.removesuffix(".jpg") for path in merged.image_paths]
    merged = replace(merged, image_ids=image_ids)
    write_annotations("voc", merged, folder, split, image_dir=".", progress=False)
    print(f"{split}: {merged.num_images} images, {merged.num_objects} objects")

paths = sorted((folder / "Annotations" / "lists").rglob("*.xml"))
xml = "".join(path.read_text() for path in paths)
print(re.search(r"(?s)<object>\s*<name>square.*?</object>", xml)[0])

# %%
# One set, three tasks
# --------------------
# `MultiTaskDataModule` delivers boxes, points and attributes in one batch, with a mask for
# values that an object does not have. `ClassBalancedSamplerConfig` draws images with rare
# classes more often. The summary opens no image. It counts the annotations, and computes
# the share of each class that training will see, in the last column.

seed_everything(0, verbose=False)
source = VocSource(folder, image_dir=".")
datamodule = MultiTaskDataModule(
    source, batch_size=16, train_sampler=ClassBalancedSamplerConfig()
)
print("\n".join(datamodule.summary().splitlines()[:8]))

# %%
# Few images contain a star, and each image brings all of its objects. So discs remain
# the most frequent class, but stars are seen several times as often.

# %%
# Train all three tasks
# ---------------------
# A small detector with further heads for points and finish learns from scratch. An object
# without points or finish trains only its box and class. Six epochs are too few for good
# scores, but enough to see all three improve. ``barebones`` switches off the checkpoints,
# loggers and progress bar of Lightning.

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")
torch.set_num_threads(1)
model = partial(fcos_small, channels=32, head_channels=32, strides=(8,), min_size=64)
task = MultiTask(
    model,
    optimizer=partial(torch.optim.AdamW, lr=0.01),
    scheduler=partial(WarmupCosineLR, warmup_steps=20),
    **model_kwargs_from_datamodule(datamodule),
)
trainer = Trainer(accelerator="cpu", max_epochs=6, limit_val_batches=0, barebones=True)
trainer.test(task, datamodule=datamodule, verbose=False)
before = task.test_scores
trainer.fit(task, datamodule=datamodule)
trainer.test(task, datamodule=datamodule, verbose=False)
for moment, scores in {"before": before, "after": task.test_scores}.items():
    finish = scores.attributes["finish"]
    print(f"{moment:6} training: mAP at IoU 0.5 {scores.detection.map_50:.2f},")
    print(f"    error of points {scores.landmarks.nme:.2f}, F1 {finish.macro_f1:.2f}")

# %%
# Look at the result
# ------------------
# Draw a batch of the training set. Objects with points and a finish come from the lists,
# and objects with only a box from the VOC files.

figure = datamodule.plot_batch("train", max_images=9)

# %%
# Next steps
# ----------
# - Check a merged set before a long training: ``lit-loader check``, then ``lit-loader show``.
# - Train it from the command line, with checkpoints, a report and resuming: ``lit-loader
#   train experiment=unified dataset=voc dataset.root=FOLDER dataset.image_dir=.``
# - The same files train models for a single task, with `LandmarkDataModule`,
#   `DetectionDataModule` or `ClassificationDataModule`.
# - If the two sets must stay apart, for example because their classes differ, train on both
#   with `MixedSource`: :doc:`several_sources`.
