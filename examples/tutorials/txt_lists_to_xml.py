"""From txt lists to one XML set that trains everything
====================================================

A team has a detector, trained from VOC XML, and a net for landmarks and classes, trained from txt lists. Both data sets
are badly imbalanced, so a script repeats the lines of rare objects in the lists before each training.

This tutorial converts the lists to XML, merges the two data sets, and trains boxes, points and classes from the result
in one run. The sampler balances the classes, so no annotation file has to be rewritten for it.
"""

# %%
# Two data sets in two formats
# ----------------------------
#
# The pictures are drawn: 75 % discs, 20 % squares and 5 % stars. Squares and stars have points at their corners, and
# every object has a finish: plain, dotted or hollow. The folder ``boxes`` has VOC XML without points and finish. The
# folder ``lists`` has a txt file for each split, with one object per line.

import logging
import re
import tempfile
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from lightning.pytorch import Trainer, seed_everything
from lit_loader import (
    ClassBalancedSamplerConfig,
    ClassificationDataModule,
    FormatSource,
    LandmarkDataModule,
    MultiTaskDataModule,
    concatenate,
    read_annotations,
    write_annotations,
)
from lit_loader.datamodules.pictures import draw_objects
from lit_loader.datasets import draw_shapes
from lit_loader.recipes import (
    MultiTask,
    WarmupCosineLR,
    fcos_small,
    model_kwargs_from_datamodule,
)

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")

folder = Path(tempfile.mkdtemp()).resolve()
num_images = {"train": 240, "val": 30, "test": 60}
for name, seed in (("boxes", 1), ("lists", 2)):
    shares = {"class_shares": (0.75, 0.2, 0.05), "finish_shares": (0.7, 0.2, 0.1)}
    size = {"image_size": 64, "objects_per_image": (1, 3)}
    draw_shapes(
        folder, num_images=num_images, **shares, **size, seed=seed, progress=False
    ).rename(folder / name)

for path in (folder / "boxes" / "Annotations").rglob("*.xml"):
    path.write_text(
        re.sub(
            r"\s*<(schema|keypoints|attributes)>.*?</\1>",
            "",
            path.read_text(),
            flags=re.DOTALL,
        )
    )

columns = "path class box points_v attribute:finish"
for split in num_images:
    table = read_annotations("voc", folder / "lists", split)
    schema = table.keypoint_schema
    write_annotations(
        "keypoints_txt",
        table,
        folder / "lists",
        f"{split}.txt",
        columns=columns,
        image_dir="JPEGImages",
    )

lines = (folder / "lists" / "train.txt").read_text().splitlines()
print(f"{len(lines)} lines, such as:", *lines[:3], sep="\n")

# %%
# Why lists are the wrong place to balance
# ----------------------------------------
#
# A line is an object, but a sample of a detector is an image. If the script writes each line of a star ten times,
# every star becomes ten boxes at the same place. So convert the original lists, and leave the balance to the sampler.

repeated = [line for line in lines for _ in range(10 if " star " in line else 1)]
(folder / "lists" / "repeated.txt").write_text("\n".join(repeated) + "\n")
list_options = {"columns": columns, "schema": schema, "image_dir": "lists/JPEGImages"}
table = read_annotations("keypoints_txt", folder, "lists/repeated.txt", **list_options)
stars = table.boxes[table.labels == table.class_names.index("star")].tolist()
print(f"{sum(' star ' in line for line in lines)} stars became {len(stars)} boxes")

# %%
# Convert and merge
# -----------------
#
# ``columns`` names the columns of the list, and ``schema`` the points. Both sets are read with the same root, so that
# every path of an image is unique. `concatenate` joins the tables: objects from the VOC files get absent points and
# no finish. `write_annotations` writes the unified XML, which is VOC with points and attributes inside ``<object>``.
# Other programs that read VOC ignore these elements. The images stay where they are.
#
# To convert a single set, use ``lit-loader convert keypoints_txt`` instead; it needs no code.

xml_options = {
    "image_dir": "boxes/JPEGImages",
    "annotation_dir": "boxes/Annotations",
    "split_dir": "boxes/ImageSets/Main",
}
for split in num_images:
    from_xml = read_annotations("voc", folder, split, **xml_options)
    from_list = read_annotations(
        "keypoints_txt", folder, f"lists/{split}.txt", **list_options
    )
    merged = concatenate([from_xml, from_list])
    merged = replace(
        merged, image_ids=[path.removesuffix(".jpg") for path in merged.image_paths]
    )
    write_annotations("voc", merged, folder, split, image_dir=".", progress=False)
    with_points = (merged.visibility > 0).any(axis=1).sum()
    print(
        f"{split}: {merged.num_images} images, {merged.num_objects} objects, {with_points} with points"
    )

xml = (folder / "Annotations" / "lists" / "JPEGImages" / "train_00001.xml").read_text()
print(xml[xml.index("<object>") :])

# %%
# One set, three tasks
# --------------------
#
# `MultiTaskDataModule` delivers boxes, points and attributes in one batch, with a mask for values that an object does
# not have. `ClassBalancedSamplerConfig` draws images with rare classes more often. The summary opens no image: it
# counts the annotations and computes the share of each class that training will see.

seed_everything(0, verbose=False)
source = FormatSource(
    "voc", folder, train="train", val="val", test="test", options={"image_dir": "."}
)
datamodule = MultiTaskDataModule(
    source, batch_size=16, train_sampler=ClassBalancedSamplerConfig(), num_workers=2
)
summary = datamodule.summaries(["train"])[0]
for name, natural, expected in zip(
    summary.class_names, summary.natural_mix, summary.expected_mix, strict=True
):
    print(
        f"{name:6} {natural:5.1%} of the annotations, {expected:5.1%} of the training objects"
    )

# %%
# Train all three tasks
# ---------------------
#
# A small detector with further heads for points and finish learns from scratch. Objects without points or finish
# train the box and the class only. Six epochs take seconds and show that every head learns; a real run takes more of
# them.

torch.set_num_threads(1)
task = MultiTask(
    partial(
        fcos_small,
        channels=32,
        head_channels=32,
        strides=(8,),
        min_size=64,
        max_size=64,
    ),
    optimizer=partial(torch.optim.AdamW, lr=0.01),
    scheduler=partial(WarmupCosineLR, warmup_steps=20),
    **model_kwargs_from_datamodule(datamodule),
)
trainer = Trainer(
    accelerator="cpu",
    max_epochs=6,
    limit_val_batches=0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
(before,) = trainer.test(task, datamodule=datamodule, verbose=False)
trainer.fit(task, datamodule=datamodule)
(after,) = trainer.test(task, datamodule=datamodule, verbose=False)
for name in ("map_50", "nme", "finish/macro_f1"):
    print(
        f"{name}: {before[f'test/{name}']:.2f} before, {after[f'test/{name}']:.2f} after training"
    )

# %%
# The same files also train a model for a single task. Crops of objects can be balanced completely, since a crop has
# one class, and by an attribute instead of the class:

landmarks = LandmarkDataModule(source, train_sampler=ClassBalancedSamplerConfig())
by_finish = ClassBalancedSamplerConfig(balance_by="finish")
finishes = ClassificationDataModule(
    source, sample_unit="object", label_attribute="finish", train_sampler=by_finish
)
for module in (landmarks, finishes):
    for counted in module.summaries(["train"]):
        mix = dict(
            zip(
                counted.class_names, counted.expected_mix.round(2).tolist(), strict=True
            )
        )
        print(f"{type(module).__name__}, {counted.label}: {mix}")

# %%
# `LandmarkDataModule` leaves out objects without points, so it has no discs.
#
# Look at the result
# ------------------
#
# The upper images are from the VOC files. The lower ones are from the lists and have points and a finish. The
# bars show the class mix before and after balancing: an image brings all of its objects, so discs remain frequent.

batch = datamodule.first_batch("train")
names = {"class_names": datamodule.class_names, "attributes": datamodule.attributes}
samples = list(zip(batch.images, batch.target_list(), strict=True))
samples.sort(key=lambda sample: int((sample[1]["visibility"] > 0).sum()))
pictures = [
    draw_objects(*sample, **names, longer_side=256)
    for sample in (*samples[:2], *samples[-2:])
]
figure = plt.figure(figsize=(9, 4.6), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=(1.1, 1))
for axis, picture in zip(left.subplots(2, 2).flat, pictures, strict=False):
    axis.imshow(picture.permute(1, 2, 0))
    axis.axis("off")
axis = right.subplots()
positions = np.arange(len(summary.class_names))
for shift, label, mix in (
    (-0.2, "annotations", summary.natural_mix),
    (0.2, "training", summary.expected_mix),
):
    bars = axis.bar(positions + shift, 100 * mix, 0.38, label=label)
    axis.bar_label(bars, fmt="%.0f %%")
axis.set_xticks(positions, summary.class_names)
axis.set_ylabel("share of objects, %")
axis.legend()
plt.show()

# %%
# Next
# ----
#
# - Check the merged set before a long training: ``lit-loader check``, then ``lit-loader show``.
# - Train it from the command line: ``lit-loader train experiment=unified dataset=voc dataset.root=DATA
#   dataset.image_dir=.`` has checkpoints, a report and resuming.
# - If the two sets must stay apart, for example because their classes differ, train on both with `MixedSource`.

# sphinx_gallery_thumbnail_number = -1
