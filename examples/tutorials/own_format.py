"""A format of your own
====================

Some annotations are in a text format that no library reads. In this tutorial, you write a reader for such a format, see
how it names the file and the line of a mistake, check the data, and train a detector on it. The reader has 20 lines.
Caching, class ids, checks, samplers and exact resume then work as for COCO.
"""

# %%
# The data
# --------
# An inspection camera writes a log. A line in brackets starts an image, and gives its file and its size. Each following
# line is one part: its class, the **centre** of its box, its width and its height. We draw such a set, so that nothing
# needs to be downloaded.

import logging
import tempfile
import warnings
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import matplotlib.pyplot as plt
import torch
from lightning.pytorch import Trainer
from lit_loader import (
    DetectionDataModule,
    FormatSource,
    Reader,
    read_annotations,
    register_format,
)
from lit_loader.annotations.formats import Rows
from lit_loader.datasets import draw_shapes
from lit_loader.errors import AnnotationError
from lit_loader.inspection import CheckSettings, check_tables, draw_image
from lit_loader.recipes import DetectionTask, WarmupCosineLR, fcos_small
from torchvision.ops import nms
from torchvision.utils import draw_bounding_boxes

folder = tempfile.TemporaryDirectory()
root = draw_shapes(
    folder.name,
    num_images={"train": 96, "val": 16},
    class_shares=(0.5, 0.3, 0.2),
    progress=False,
)
for split in ("train", "val"):
    table = read_annotations("voc", root, split, progress=False)
    lines = []
    for i in range(table.num_images):
        lines.append(f"[{table.image_paths[i]} {table.widths[i]}x{table.heights[i]}]")
        rows = table.objects(i)
        for (xmin, ymin, xmax, ymax), label in zip(
            table.boxes[rows].tolist(), table.labels[rows], strict=True
        ):
            center = f"{(xmin + xmax) / 2} {(ymin + ymax) / 2}"
            lines.append(
                f"{table.class_names[label]} {center} {xmax - xmin} {ymax - ymin}"
            )
    (root / f"{split}.log").write_text("\n".join(lines))
print("\n".join(lines[:4]))

# %%
# The reader
# ----------
# A reader is a frozen dataclass, and its fields are the options of the format. ``read`` gets one file, and adds images
# and objects row by row. It opens no image and counts no class: the base class does that for all formats.
#
# - **Convert here.** Boxes of a table are xmin, ymin, xmax, ymax in pixels, so no other code knows about centres.
# - **Pass the line.** Every later message then names file and line, even in checks that run long after ``read``.
# - **Report, do not guess.** ``rows.malformed`` raises an error or drops the line: the user's policy decides.


@register_format
@dataclass(frozen=True, kw_only=True)
class CameraReader(Reader):
    """Reads logs of the inspection camera; with ``corner``, x and y are the upper left corner of a box."""

    format: ClassVar[str] = "camera"
    description: ClassVar[str] = "logs of the inspection camera; NAME: the log file"
    corner: bool = False

    def read(self, rows: Rows, unit: str) -> None:
        """Add the images and parts of one log."""
        image = None
        for line, text in self.lines(rows, unit):
            try:
                if text.startswith("["):
                    path, size = text.strip("[]").rsplit(maxsplit=1)
                    width, height = map(int, size.split("x"))
                    image = rows.image(path, width=width, height=height, line=line)
                    continue
                class_name, *numbers = text.split()
                x, y, width, height = map(float, numbers)
            except ValueError:
                rows.malformed(
                    f"expected [path WxH] or 'class x y width height', got {text!r}",
                    line=line,
                )
                continue
            if image is None:
                raise AnnotationError(
                    "a part before the first image", path=rows.root / unit, line=line
                )
            if not self.corner:
                x, y = x - width / 2, y - height / 2
            rows.object(
                image,
                class_name=class_name,
                box=(x, y, x + width, y + height),
                line=line,
            )


# %%
# A mistake names its line
# ------------------------
# Real logs have mistakes. A decimal comma in line 3 ends the read. A policy drops and counts such lines instead.

log = root / "train.log"
correct_text = log.read_text()
lines = correct_text.split("\n")
lines[2] = lines[2].replace(".", ",", 1)
log.write_text("\n".join(lines))
try:
    read_annotations("camera", root, "train.log", progress=False)
except AnnotationError as error:
    print(str(error).replace(f"{root}/", ""))
print(
    read_annotations(
        "camera", root, "train.log", policy={"malformed": "drop"}, progress=False
    ).report
)

# %%
# Check before you train
# ----------------------
# A reader can be wrong without an error. With ``corner=True`` it takes the centre for the corner: all numbers are
# valid, and all boxes are shifted. The check behind ``lit-loader check`` compares boxes with the images, in any format.
# It reports boxes that leave their image, each with its line, and nothing for the correct reader.

log.write_text(correct_text)
settings = CheckSettings(ignored_kinds=["imbalance", "rare_class"])
for corner in (True, False):
    read = partial(read_annotations, "camera", root, corner=corner, progress=False)
    tables = {"train": read("train.log"), "val": read("val.log")}
    findings = check_tables(tables, settings=settings, progress=False)
    print(
        f"corner={corner}: {findings.count('error')} errors, {findings.count('warning')} warnings"
    )
    for finding in list(findings)[:1]:
        print(f"  {finding.place.file}:{finding.place.line}: {finding.message}")

# %%
# Train
# -----
# A registered format has a name, so a source reads it like any other, and the data module needs no change. We train a
# small detector from scratch for 96 steps, enough to see that boxes, classes and images fit together. The worker is
# forked; where workers are spawned, a script needs ``if __name__ == "__main__":``.

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")
source = FormatSource(
    format="camera", root=str(root), train="train.log", val="val.log", progress=False
)
datamodule = DetectionDataModule(source, batch_size=16, num_workers=1, seed=0)
datamodule.prepare_data()

torch.set_num_threads(1)  # the worker needs the other core
torch.manual_seed(0)
detector = partial(fcos_small, strides=(8,), min_size=96, max_size=96)
rates = {
    "optimizer": partial(torch.optim.AdamW, lr=0.01),
    "scheduler": partial(WarmupCosineLR, warmup_steps=10),
}
model = DetectionTask(detector, class_names=datamodule.class_names, **rates)
quiet = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
trainer = Trainer(
    max_epochs=16,
    accelerator="cpu",
    check_val_every_n_epoch=16,
    num_sanity_val_steps=0,
    **quiet,
)
trainer.fit(model, datamodule=datamodule)
print(
    f"mAP@50 of the validation after {trainer.global_step} steps: {model.val_scores.map_50:.2f}"
)

# %%
# Look at the result
# ------------------
# The upper row shows the annotations as the reader understood them, the lower row the detections. After 96 steps the
# boxes fit, and the classes need longer. The upper row is also the quickest test of a new reader: a shift, exchanged
# axes or a wrong class are visible at once.

images, targets = datamodule.first_batch("val")
with torch.inference_mode():
    detections = model.eval()(images)

figure, axes = plt.subplots(2, 4, figsize=(10, 5.6), layout="constrained")
axes[0, 0].set_title("annotations", loc="left")
axes[1, 0].set_title("detections", loc="left")
samples = zip(images[:4], targets[:4], detections[:4], strict=True)
for column, (image, target, found) in enumerate(samples):
    best = nms(found["boxes"], found["scores"], iou_threshold=0.3)
    best = best[found["scores"][best] > 0.4]
    names = [datamodule.class_names[label - 1] for label in found["labels"][best]]
    large = torch.nn.functional.interpolate(image[None], scale_factor=3)[0]
    drawn = draw_bounding_boxes(
        large, 3 * found["boxes"][best], names, colors="white", width=2
    )
    axes[0, column].imshow(
        draw_image(tables["val"], target["image_id"], longer_side=288).permute(1, 2, 0)
    )
    axes[1, column].imshow(drawn.permute(1, 2, 0))
for axis in axes.flat:
    axis.set_axis_off()
plt.show()
folder.cleanup()

# %%
# Use it everywhere
# -----------------
# ``register_format`` makes the format known to one program. An entry point of the group ``lit_loader.formats`` in the
# ``pyproject.toml`` of a package makes it known to all: ``lit-loader check ROOT --format camera`` and
# ``lit-loader train dataset=files dataset.format=camera`` work, and ``lit-loader index --help`` lists it.
