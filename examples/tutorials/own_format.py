"""A format of your own
====================

Some annotations are in a text format that no library reads. In this tutorial, you write
a reader for such a format in 25 lines, see how it reports a mistake with its file and
line, check the data, and load batches of it. The rest of lit_loader then works as it does
for COCO: caching, samplers, exact resume and training.
"""

# %%
# The data
# --------
# An inspection camera writes a log. A line in brackets starts an image and gives its file
# and its size. Each line after it is one part: its class, the **centre** of its box, and
# the width and height of the box. We draw such a set, so there is nothing to download.

import tempfile
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import matplotlib.pyplot as plt
from lit_loader import (
    DetectionDataModule,
    FormatSource,
    Reader,
    read_annotations,
    register_format,
)
from lit_loader.datasets import draw_shapes
from lit_loader.errors import AnnotationError
from lit_loader.inspection import check_tables, draw_image

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
# A reader is a frozen dataclass whose fields are the options of the format. Its method
# ``read`` takes one file, and adds images and objects row by row. It does not open
# images or count classes, because the base class does that for all formats. Three rules
# make a good reader:
#
# - **Convert here.** The table of annotations has boxes as xmin, ymin, xmax, ymax in
#   pixels. No code after the reader needs to know about centres.
# - **Pass the line.** All later messages then name the file and the line, even messages of
#   checks that run long after ``read``.
# - **Report, do not guess.** ``rows.malformed`` raises an error or drops the line,
#   depending on the user's setting.


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
# Load batches
# ------------
# A registered format has a name, so a source reads it like any other, and the data module
# needs no change. Pass the data module to ``trainer.fit``, as for any other data set.

source = FormatSource("camera", root, train="train.log", val="val.log", progress=False)
datamodule = DetectionDataModule(source, batch_size=16, seed=0)
images, targets = datamodule.first_batch("train")
print(len(images), "images, the first one with the classes", datamodule.class_names)
print(targets[0]["labels"], targets[0]["boxes"], sep="\n")

# %%
# Look at the result
# ------------------
# `draw_image` draws the boxes of an image as the reader understood them. The upper row is
# read with ``corner=True``, and the lower row correctly. Such a picture is the quickest test
# of a new reader: a shift, exchanged axes or a wrong class are visible at once.

figure, axes = plt.subplots(2, 3, figsize=(8, 5.6), layout="constrained")
for row, corner in enumerate((True, False)):
    table = read("val.log", corner=corner)
    for i in range(3):
        axes[row, i].imshow(draw_image(table, i, longer_side=320).permute(1, 2, 0))
        axes[row, i].set_axis_off()
    axes[row, 1].set_title(f"corner={corner}")
plt.show()

# %%
# Use it everywhere
# -----------------
# ``register_format`` makes the format known to one program. An entry point of the group
# ``lit_loader.formats`` in the ``pyproject.toml`` of a package makes it known to all: then
# ``lit-loader check camera ROOT train.log`` and
# ``lit-loader train dataset=files dataset.format=camera dataset.root=ROOT`` work, and
# ``lit-loader index --help`` lists it. See :doc:`/extending/format`.
