"""A format of your own
====================

Some annotations are in a text format that no library reads. In this tutorial, you write
a reader for such a format in 25 lines, see how it reports a mistake with its file and
line, check the data, and train a detector on it. The rest of lit_loader then works as it
does for COCO: caching, checks, samplers and exact resume.
"""

# %%
# The data
# --------
# An inspection camera writes a log. A line in brackets starts an image and gives its file
# and its size. Each line after it is one part: its class, the **centre** of its box, and
# the width and height of the box. We draw such a set, so there is nothing to download.

import logging
import tempfile
import warnings
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from lightning.pytorch import Trainer
from lit_loader import (
    DetectionDataModule,
    FormatSource,
    Reader,
    read_annotations,
    register_format,
)
from lit_loader.datasets import draw_shapes
from lit_loader.errors import AnnotationError
from lit_loader.inspection import check_tables
from lit_loader.recipes import (
    DetectionTask,
    WarmupCosineLR,
    draw_predictions,
    fcos_small,
)

folder = tempfile.TemporaryDirectory()
shares = (0.5, 0.3, 0.2)
num_images = {"train": 96, "val": 16}
root = draw_shapes(
    folder.name, num_images=num_images, class_shares=shares, progress=False
)
for split in num_images:
    table = read_annotations("voc", root, split, progress=False)
    lines = []
    for i in range(table.num_images):
        lines.append(f"[{table.image_paths[i]} {table.widths[i]}x{table.heights[i]}]")
        for row in range(table.offsets[i], table.offsets[i + 1]):
            xmin, ymin, xmax, ymax = table.boxes[row].tolist()
            center = f"{(xmin + xmax) / 2} {(ymin + ymax) / 2}"
            name = table.class_names[table.labels[row]]
            lines.append(f"{name} {center} {xmax - xmin} {ymax - ymin}")
    (root / f"{split}.log").write_text("\n".join(lines))
print("\n".join(lines[:4]))

# %%
# The reader
# ----------
# A reader is a frozen dataclass, and its fields are the options of the format. Its method
# ``read`` gets one file, and adds images and objects row by row. It opens no image and
# counts no class, because the base class does that for all formats. Three rules make a
# good reader:
#
# - **Convert here.** The table of annotations has boxes as xmin, ymin, xmax, ymax in
#   pixels. No code after the reader needs to know about centres.
# - **Pass the line.** All later messages then name the file and the line, also those of
#   checks that run long after ``read``.
# - **Report, do not guess.** ``rows.malformed`` raises an error or drops the line. Which
#   of them is a setting of the user.


@register_format
@dataclass(frozen=True, kw_only=True)
class CameraReader(Reader):
    format: ClassVar[str] = "camera"
    description: ClassVar[str] = "logs of the inspection camera; NAME: the log file"
    corner: bool = False  # x and y are the upper left corner of a box

    def read(self, rows, unit):
        image = None
        for line, text in self.lines(rows, unit):
            try:
                if text.startswith("["):
                    path, size = text.strip("[]").rsplit(maxsplit=1)
                    width, height = map(int, size.split("x"))
                    image = rows.image(path, width=width, height=height, line=line)
                    continue
                name, *numbers = text.split()
                x, y, width, height = map(float, numbers)
            except ValueError:
                expected = "[path WxH] or 'class x y width height'"
                rows.malformed(f"expected {expected}, got {text!r}", line=line)
                continue
            if image is None:
                message = "a part before the first image"
                raise AnnotationError(message, path=rows.root / unit, line=line)
            if not self.corner:
                x, y = x - width / 2, y - height / 2
            box = (x, y, x + width, y + height)
            rows.object(image, class_name=name, box=box, line=line)


# %%
# A mistake names its line
# ------------------------
# Real logs have mistakes, such as a decimal comma in line 3. By default it is an error.
# With a policy, such lines are dropped and counted.

lines = (root / "train.log").read_text().split("\n")
lines[2] = lines[2].replace(".", ",", 1)
(root / "mistake.log").write_text("\n".join(lines))
read = partial(read_annotations, "camera", root, progress=False)
try:
    read("mistake.log")
except AnnotationError as error:
    print(str(error).replace(f"{root}/", ""))
print(read("mistake.log", policy={"malformed": "drop"}).report)

# %%
# Check before you train
# ----------------------
# A reader can be wrong without an error. With ``corner=True`` it takes the centre of a box
# for its corner: all numbers are valid, and all boxes are shifted. `check_tables`, the
# function behind ``lit-loader check``, compares boxes with the images, in any format. It
# reports boxes that leave their image, each with its line.

for corner in (True, False):
    tables = {split: read(f"{split}.log", corner=corner) for split in num_images}
    findings = check_tables(tables, progress=False)
    print(f"corner={corner}: {findings.count('error')} errors")
first = next(iter(check_tables({"val": read("val.log", corner=True)}, progress=False)))
print(f"{first.place.file}:{first.place.line}: {first.message}")

# %%
# Train
# -----
# A registered format has a name, so a source reads it like any other, and the data module
# needs no change. We train a small detector from scratch for 96 steps, which is enough to
# see that boxes, classes and images fit together. ``barebones`` switches off checkpoints,
# loggers and the progress bar of Lightning.

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")
torch.set_num_threads(1)
torch.manual_seed(0)

source = FormatSource("camera", root, train="train.log", val="val.log", progress=False)
datamodule = DetectionDataModule(source, batch_size=16, num_workers=0, seed=0)
task = DetectionTask(
    partial(fcos_small, strides=(8,), min_size=96, max_size=96),
    class_names=datamodule.tables("train")[0].class_names,
    optimizer=partial(torch.optim.AdamW, lr=0.01),
    scheduler=partial(WarmupCosineLR, warmup_steps=10),
)
trainer = Trainer(
    accelerator="cpu", max_epochs=16, check_val_every_n_epoch=16, barebones=True
)
trainer.fit(task, datamodule=datamodule)
print(f"mAP at IoU 0.5 after {trainer.global_step} steps: {task.val_scores.map_50:.2f}")

# %%
# Look at the result
# ------------------
# `draw_predictions` shows the annotations of an image on the left, as the reader understood
# them, and the detections on the right. Such a picture is also the quickest test of a new
# reader: a shift, exchanged axes or a wrong class are visible at once.

batch = datamodule.first_batch("val")
figure = draw_predictions(task, datamodule, batch, min_score=0.4, max_images=4)

# %%
# Use it everywhere
# -----------------
# ``register_format`` makes the format known to one program. An entry point of the group
# ``lit_loader.formats`` in the ``pyproject.toml`` of a package makes it known to all: then
# ``lit-loader check ROOT --format camera`` and
# ``lit-loader train dataset=files dataset.format=camera`` work, and
# ``lit-loader index --help`` lists it. See :doc:`/extending/format`.
