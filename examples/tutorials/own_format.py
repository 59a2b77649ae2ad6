"""A format of your own
====================

Your annotations are in a text format that nobody else has. This tutorial writes a reader for such a format, lets it
name the file and the line of every mistake, checks the data, and trains a detector on it. The reader has 20 lines;
caching, class ids, checks, balancing and training work without further code.

The script runs as ``python own_format.py``. It forks its two workers, as Linux does by default; where workers are
spawned, put everything below the class into ``if __name__ == "__main__":``.
"""

# %%
# The data
# --------
#
# An inspection camera writes one log file for each day. A line in brackets starts an image, and gives its file and its
# size. Each following line is one part: its kind, the **centre** of its box, its width and its height. We draw such a
# set, so that nothing needs to be downloaded.

import logging
import tempfile
import warnings
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import matplotlib.pyplot as plt
import torch
from lightning.pytorch import Trainer
from matplotlib.patches import Rectangle
from torchvision.ops import nms

from lit_loader import DetectionDataModule, FormatSource, Reader, read_annotations, register_format
from lit_loader.annotations.formats import Rows
from lit_loader.datasets import draw_shapes
from lit_loader.errors import AnnotationError
from lit_loader.inspection import CheckSettings, check_tables, draw_image
from lit_loader.recipes import DetectionTask, WarmupCosineLR, fcos_small

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")

folder = tempfile.TemporaryDirectory()
root = draw_shapes(folder.name, num_images={"train": 96, "val": 16}, class_shares=(0.5, 0.3, 0.2), progress=False)


def write_log(split: str) -> None:
    """Write the objects of a split as a log of the camera."""
    table = read_annotations("voc", root, split, progress=False)
    lines = [f"; camera 2, {split}"]
    for i in range(table.num_images):
        lines.append(f"[{table.image_paths[i]} {table.widths[i]}x{table.heights[i]}]")
        objects = table.objects(i)
        for (xmin, ymin, xmax, ymax), label in zip(table.boxes[objects].tolist(), table.labels[objects], strict=True):
            name = table.class_names[label]
            lines.append(f"{name} {(xmin + xmax) / 2} {(ymin + ymax) / 2} {xmax - xmin} {ymax - ymin}")
    (root / f"{split}.log").write_text("\n".join(lines) + "\n")


for split in ("train", "val"):
    write_log(split)
print("\n".join((root / "train.log").read_text().splitlines()[:6]))

# %%
# The reader
# ----------
#
# A reader is a frozen dataclass that derives from :py:class:`lit_loader.Reader`. Its fields are the options of the
# format. ``read`` gets one file and adds rows: ``rows.image`` for an image, ``rows.object`` for an object. It does not
# open images, look up files or count classes; the base class does that for all formats.
#
# Three rules make a reader trustworthy:
#
# - **Convert here.** Boxes of the table are xmin, ymin, xmax, ymax in pixels. Nobody downstream knows about centres.
# - **Pass the line.** With ``line=``, every later message names the file and the line, also those of checks that run
#   long after ``read``.
# - **Report, do not guess.** ``rows.malformed`` raises an error, or drops the line and counts it: the user's policy
#   decides, not the reader. Negative sizes or boxes outside the image need no code here, because the base class checks
#   them in every format.


@register_format
@dataclass(frozen=True, kw_only=True)
class CameraReader(Reader):
    """Reads logs of the inspection camera.

    Args:
        corner: True if x and y are the upper left corner of a box, False if they are its centre.
    """

    format: ClassVar[str] = "camera"
    description: ClassVar[str] = "logs of the inspection camera; NAME: the log file"

    corner: bool = False

    def read(self, rows: Rows, unit: str) -> None:
        """Add the images and parts of one log."""
        image = None
        for line, text in self.lines(rows, unit):
            text = text.strip()
            if not text or text.startswith(";"):
                continue
            try:
                if text.startswith("["):
                    path, size = text.strip("[]").rsplit(maxsplit=1)
                    width, height = map(int, size.split("x"))
                    image = rows.image(path, width=width, height=height, line=line)
                    continue
                name, *numbers = text.split()
                x, y, width, height = map(float, numbers)
            except ValueError:
                rows.malformed(f"expected [path WxH] or 'class x y width height', got {text!r}", line=line)
                continue
            if image is None:
                raise AnnotationError("a part before the first image", path=rows.root / unit, line=line)
            if not self.corner:
                x, y = x - width / 2, y - height / 2
            box = (x, y, x + width, y + height)
            rows.object(image, class_name=name, box=box, line=line)


# %%
# A mistake names its line
# ------------------------
#
# Real logs have mistakes. A decimal comma in line 4 ends the read with an error that names the file and the line:

log = root / "train.log"
correct_text = log.read_text()
lines = correct_text.splitlines()
lines[3] = lines[3].replace(".", ",", 1)
log.write_text("\n".join(lines) + "\n")
try:
    read_annotations("camera", root, "train.log", progress=False)
except AnnotationError as error:
    print(str(error).replace(str(root), "ROOT"))

# %%
# For a look at a large set with a few broken lines, a policy drops and counts them instead:

table = read_annotations("camera", root, "train.log", policy={"malformed": "drop"}, progress=False)
print(table.num_images, "images,", table.num_objects, "objects,", table.class_names)
print(table.report)

# %%
# Check before you train
# ----------------------
#
# A reader can be wrong without an error. The option ``corner`` reads x and y as the upper left corner, as if we had not
# noticed that they are the centre: every number is valid, and every box is shifted. The check that ``lit-loader check``
# runs compares boxes with the images, in any format. It reports the shifted boxes, each with its line, and nothing for
# the correct reader.

log.write_text(correct_text)
settings = CheckSettings(ignored_kinds=["imbalance", "rare_class"])
for corner in (True, False):
    tables = {
        split: read_annotations("camera", root, f"{split}.log", corner=corner, progress=False)
        for split in ("train", "val")
    }
    findings = check_tables(tables, settings=settings, progress=False)
    print(f"corner={corner}: {findings.count('error')} errors, {findings.count('warning')} warnings")
    for finding in list(findings)[:1]:
        print(f"  {finding.place.file}:{finding.place.line}: {finding.message}")

# %%
# Train
# -----
#
# A registered format has a name, so a source reads it like any other. The data module does not know where the tables
# come from: samplers, transforms, tiles and exact resume work as for COCO. We train a small detector from scratch for
# 16 epochs of 6 steps, enough to see that boxes, classes and images fit together.

source = FormatSource(format="camera", root=str(root), train="train.log", val="val.log", progress=False)
datamodule = DetectionDataModule(source, batch_size=16, num_workers=2, seed=0)
datamodule.prepare_data()

torch.set_num_threads(1)  # the workers need the other core
torch.manual_seed(0)
model = DetectionTask(
    partial(fcos_small, strides=(8,), min_size=96, max_size=96),
    class_names=datamodule.class_names,
    optimizer=partial(torch.optim.AdamW, lr=0.01),
    scheduler=partial(WarmupCosineLR, warmup_steps=10),
)
trainer = Trainer(
    max_epochs=16,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    num_sanity_val_steps=0,
    check_val_every_n_epoch=16,
)
trainer.fit(model, datamodule=datamodule)
print(f"mAP@50 of the validation after {trainer.global_step} steps: {model.val_scores.map_50:.2f}")

# %%
# Look at the result
# ------------------
#
# The upper row shows the annotations as the reader understood them, the lower row what the detector finds. The first
# row is also the quickest test of a new reader: a shift, exchanged axes or a wrong class are visible at once.

images, targets = datamodule.first_batch("val")
with torch.inference_mode():
    detections = model.eval()(images)

figure, axes = plt.subplots(2, 4, figsize=(10, 5.6), layout="constrained")
axes[0, 0].set_title("annotations", loc="left")
axes[1, 0].set_title("detections", loc="left")
samples = zip(images[:4], targets[:4], detections[:4], strict=True)
for column, (image, target, found) in enumerate(samples):
    annotated = draw_image(tables["val"], target["image_id"], longer_side=288)
    axes[0, column].imshow(annotated.permute(1, 2, 0))
    axes[1, column].imshow(image.permute(1, 2, 0))
    for row in nms(found["boxes"], found["scores"], iou_threshold=0.3).tolist():
        if found["scores"][row] > 0.4:
            xmin, ymin, xmax, ymax = found["boxes"][row].tolist()
            axes[1, column].add_patch(Rectangle((xmin, ymin), xmax - xmin, ymax - ymin, fill=False, color="white"))
            name = datamodule.class_names[found["labels"][row] - 1]
            axes[1, column].text(xmin, ymin - 1, name, color="white", weight="bold", fontsize=9)
for axis in axes.flat:
    axis.set_axis_off()
plt.show()
folder.cleanup()

# %%
# In a package
# ------------
#
# ``register_format`` makes the format known to one program. To use it on the command line and in every program, name
# the class in the ``pyproject.toml`` of a package, as an entry point of the group ``lit_loader.formats``. Then
# ``lit-loader check ROOT --format camera`` and ``lit-loader train dataset=files dataset.format=camera`` work, and
# ``lit-loader index --help`` lists the format with its options.
