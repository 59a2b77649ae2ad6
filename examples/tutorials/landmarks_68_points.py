"""Facial landmarks: 68 points
===========================

Train a model that finds the 68 points of the iBUG 300-W mark-up, from annotations in a CSV file. Landmark training can
go wrong in three places without an error message: the order of the points, their mirror images, and the distance that
normalizes the error. The tutorial checks all three.
"""

# %%
# Faces and a CSV file
# --------------------
#
# The faces are drawn, so nothing has to be downloaded. `face_points` returns the 68 points in the order of the
# mark-up: 17 of the jaw, 5 of each brow, 9 of the nose, 6 of each eye and 20 of the lips. `draw_face` paints them.

import csv
import logging
import tempfile
import warnings
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from lightning.pytorch import Trainer, seed_everything
from lit_loader import FormatSource, LandmarkDataModule
from lit_loader.recipes import (
    LandmarkTask,
    WarmupCosineLR,
    heatmaps_small,
    model_kwargs_from_datamodule,
)
from PIL import Image, ImageDraw

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


def face_points(rng: np.random.Generator) -> np.ndarray:
    """Return 68 points (x, y) of a random face in an image of 192 x 192 pixels."""
    arc = np.linspace(-np.pi / 2, np.pi / 2, 17)
    brow = np.stack(
        [
            np.linspace(-0.75, -0.2, 5),
            rng.uniform(-0.6, -0.45) - 0.1 * np.sin(np.linspace(0.3, 2.8, 5)),
        ],
        1,
    )
    eye = np.array(
        [(-0.62, 0), (-0.52, -1), (-0.36, -1), (-0.26, 0), (-0.36, 1), (-0.52, 1)]
    )
    eye[:, 1] = -0.22 + rng.uniform(0.03, 0.09) * eye[:, 1]
    around = -np.pi + np.arange(12) * np.pi / 6
    lip_width, lip_height = rng.uniform(0.25, 0.42), rng.uniform(0.1, 0.2)
    lips = np.stack(
        [lip_width * np.cos(around), 0.6 + lip_height * np.sin(around)], axis=1
    )
    inner = np.array([0, 2, 3, 4, 6, 8, 9, 10])
    face = np.concatenate([
        np.stack([np.sin(arc), 1.15 * np.cos(arc) - 0.15], axis=1),  # jaw, from one ear to the other
        brow,
        brow[::-1] * (-1, 1),
        np.stack([np.zeros(4), np.linspace(-0.2, 0.15, 4)], axis=1),  # bridge of the nose
        np.stack([np.linspace(-0.18, 0.18, 5), [0.24, 0.27, 0.29, 0.27, 0.24]], axis=1),
        eye,
        eye[[3, 2, 1, 0, 5, 4]] * (-1, 1),
        lips,
        0.6 * (lips[inner] - (0, 0.6)) + (0, 0.6),
    ])  # fmt: skip
    angle = rng.uniform(-0.3, 0.3)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return face * rng.uniform((46, 50), (60, 62)) @ turn + rng.uniform(88, 104, 2)


def draw_face(points: np.ndarray, rng: np.random.Generator) -> Image.Image:
    """Paint a face over a background of random colour."""
    image = Image.new("RGB", (192, 192), tuple(rng.integers(30, 200, 3)))
    draw = ImageDraw.Draw(image)
    skin = np.array([224, 180, 150]) * rng.uniform(0.4, 1.1)
    middle = (points[0] + points[16]) / 2
    outline = [
        *points[:17],
        *(middle + (points[16 - i] - middle) * (1, -0.75) for i in range(17)),
    ]
    draw.polygon([tuple(point) for point in outline], fill=tuple(skin.astype(int)))
    dark = tuple((skin * 0.35).astype(int))
    for first, last in ((17, 21), (22, 26), (27, 30), (31, 35)):
        draw.line(
            [tuple(point) for point in points[first : last + 1]], fill=dark, width=4
        )
    for first, last in ((36, 41), (42, 47)):
        draw.polygon(
            [tuple(point) for point in points[first : last + 1]],
            fill="white",
            outline=dark,
        )
        x, y = points[first : last + 1].mean(axis=0)
        draw.ellipse((x - 4, y - 4, x + 4, y + 4), fill=dark)
    draw.polygon([tuple(point) for point in points[48:60]], fill=(170, 60, 70))
    draw.polygon([tuple(point) for point in points[60:]], fill=(80, 20, 30))
    return image


rng = np.random.default_rng(0)
folder = Path(tempfile.mkdtemp())
(folder / "images").mkdir()
for split, count in (("train", 300), ("val", 20), ("test", 60)):
    with (folder / f"{split}.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(
            ["image", *(f"{axis}{point}" for point in range(68) for axis in "xy")]
        )
        for number in range(count):
            points = face_points(rng)
            draw_face(points, rng).save(folder / "images" / f"{split}_{number}.png")
            rows.writerow([f"{split}_{number}.png", *points.round(2).ravel()])
print((folder / "train.csv").read_text().splitlines()[1][:60], "...")

# %%
# One schema names the points
# ---------------------------
#
# ``schema="face_68"`` describes the 136 numbers of a row: the order of the points, the pairs that a mirror exchanges,
# the lines of a drawing, and the two points whose distance normalizes the error. Other mark-ups are ``face_5``,
# ``face_98`` (WFLW) and ``coco_17``; your own is a dict with ``names`` and ``flip_pairs``.
#
# The CSV has no box, so a face gets the box around its points. Real lists differ in details, such as a folder for each
# split or columns to skip, which options of ``keypoints_csv`` and ``keypoints_txt`` describe.

options = {"schema": "face_68", "class_name": "face", "image_dir": "images"}
source = FormatSource(
    "keypoints_csv",
    folder,
    train="train.csv",
    val="val.csv",
    test="test.csv",
    options=options,
)
(table,) = source.tables("train")
print(
    table.num_images,
    "images,",
    len(table.keypoint_names),
    "points,",
    len(table.flip_pairs),
    "mirror pairs",
)
print("errors are divided by the distance of points", table.normalization_pair)

# %%
# Check the mirror pairs
# ----------------------
#
# A horizontal flip moves the left eye to the right side of the picture. There it must be called "right eye", or half
# of all training images teach the model exchanged names, and no error message tells you. So look at it: after the
# flip, blue points must be on the left again. On the command line, ``lit-loader show DATA --mirrored`` draws this for
# your own data set.

image = Image.open(table.image_path(0))
points = table.keypoints[0]
left, right = np.array(
    [sorted(pair, key=lambda point: points[point, 0]) for pair in table.flip_pairs]
).T
mirrored = points * (-1, 1) + (image.width, 0)
exchanged = mirrored.copy()
exchanged[left] = mirrored[right]
exchanged[right] = mirrored[left]

figure, axes = plt.subplots(1, 3, figsize=(9, 3.3), layout="constrained")
flipped_image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
panels = {
    "annotation": (image, points),
    "flipped, with mirror pairs": (flipped_image, exchanged),
    "flipped, without: wrong names": (flipped_image, mirrored),
}
for axis, (title, (picture, marks)) in zip(axes, panels.items(), strict=True):
    axis.imshow(picture)
    axis.scatter(
        *marks[left].T, s=9, color="#0072b2", label="left half: 0, 17, 36, 48, ..."
    )
    axis.scatter(
        *marks[right].T, s=9, color="#e69f00", label="right half: 16, 26, 45, 54, ..."
    )
    axis.set_title(title, fontsize=10)
    axis.axis("off")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
plt.show()

# %%
# Crops for training
# ------------------
#
# A sample is a face, not an image: the preset cuts a square around the box, with a margin, and turns, shifts and
# flips it in training. A flip exchanges the mirror pairs. Points that leave the crop count as absent and are not
# trained on.

seed_everything(0, verbose=False)
datamodule = LandmarkDataModule(
    source,
    batch_size=16,
    train_transforms={
        "size": 64,
        "margin": 0.15,
        "rotation": 15.0,
        "shift": 0.05,
        "photometric": 0.3,
    },
    val_transforms={"size": 64, "margin": 0.15},
    num_workers=2,
)
batch = datamodule.first_batch("train")
print(tuple(batch.images.shape), tuple(batch.keypoints.shape), tuple(batch.mask.shape))

# %%
# Train, and test before and after
# --------------------------------
#
# `LandmarkTask` predicts a heatmap for each point. The error is the mean distance of predicted and true points,
# divided by the distance of the outer eye corners (NME): 0.05 is 5 % of it. Always say what an NME is divided by;
# with the size of the box instead, the same points have a much smaller error.

torch.set_num_threads(1)
task = LandmarkTask(
    partial(heatmaps_small, channels=24, head_channels=68),
    optimizer=partial(torch.optim.AdamW, lr=0.005),
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
for name in ("nme", "failure_rate"):
    print(
        f"{name}: {before[f'test/{name}']:.3f} before, {after[f'test/{name}']:.3f} after training"
    )

# %%
# Look at the predictions
# -----------------------
#
# Dots are the true points, lines join the predicted ones along the skeleton of the schema. `draw_predictions` draws
# any task with any data module; these few lines show how to do it with the arrays.

batch = datamodule.first_batch("test")
with torch.inference_mode():
    predicted = task.eval().predict_step(batch, 0)["keypoints"]

figure, axes = plt.subplots(2, 4, figsize=(9, 4.8), layout="constrained")
for axis, crop, true, points in zip(
    axes.flat, batch.images, batch.keypoints, predicted, strict=False
):
    axis.imshow(crop.permute(1, 2, 0))
    for first, second in datamodule.skeleton:
        (line,) = axis.plot(*points[[first, second]].T, color="#e69f00", linewidth=1.5)
    dots = axis.scatter(*true.T, s=4, color="#0072b2", zorder=2)
    axis.axis("off")
figure.legend(
    [dots, line],
    ["true points", "predicted points, joined"],
    loc="outside lower center",
    ncols=2,
)
plt.show()

# %%
# Next
# ----
#
# - The same from the command line, with checkpoints and a report: ``lit-loader convert keypoints_csv ... --to voc``
#   and ``lit-loader train experiment=faces dataset.root=faces-xml``.
# - With thousands of real faces, take a pretrained backbone: ``LandmarkTask("resnet18", weights="DEFAULT", ...)``.
# - Crops are made around the annotated boxes, also in the test. With boxes of a detector the error is larger.

# sphinx_gallery_thumbnail_number = -1
