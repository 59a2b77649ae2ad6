"""Facial landmarks: 68 points
===========================

Train a model that finds the 68 points of the iBUG 300-W mark-up on a face, from
annotations in a CSV file. Three mistakes in landmark training cause no error message: a
wrong order of the points, wrong mirror pairs, and an error that is divided by the wrong
distance. This tutorial checks all three.
"""

# %%
# Faces and a CSV file
# --------------------
# The faces are drawn, so there is nothing to download. ``face_points`` returns the 68
# points in the order of the mark-up: 17 of the jaw, 5 of each brow, 9 of the nose, 6 of
# each eye, and 20 of the lips. A row of the CSV file has the name of the image, then x and
# y of each point.

import csv
import logging
import tempfile
import warnings
from functools import partial
from math import pi
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from lightning.pytorch import Trainer, seed_everything
from lit_loader import FormatSource, LandmarkDataModule
from lit_loader.inspection import draw_mirrored
from lit_loader.recipes import (
    LandmarkTask,
    WarmupCosineLR,
    draw_predictions,
    heatmaps_small,
    model_kwargs_from_datamodule,
)
from PIL import Image, ImageDraw


def arc(start, stop, count, center, radii):
    angles = np.linspace(start, stop, count)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1) * radii + center


def face_points(rng):
    jaw = arc(pi, 0, 17, (0, -0.1), (1, 1.15))
    brow = arc(1.2 * pi, 1.8 * pi, 5, (-0.48, rng.uniform(-0.45, -0.35)), (0.34, 0.12))
    bridge = np.linspace((0, -0.2), (0, 0.15), 4)
    nostrils = arc(pi, 0, 5, (0, 0.24), (0.18, 0.06))
    eye = arc(-pi, 2 * pi / 3, 6, (-0.44, -0.22), (0.18, rng.uniform(0.04, 0.1)))
    lips = rng.uniform((0.25, 0.1), (0.42, 0.2))
    mouth = arc(-pi, 5 * pi / 6, 12, (0, 0.6), lips)
    inner = arc(-pi, 3 * pi / 4, 8, (0, 0.6), 0.6 * lips)
    brow_2, eye_2 = brow[::-1] * (-1, 1), eye[[3, 2, 1, 0, 5, 4]] * (-1, 1)
    face = [jaw, brow, brow_2, bridge, nostrils, eye, eye_2, mouth, inner]
    sine = rng.uniform(-0.3, 0.3)
    size = rng.uniform((40, 44), (54, 56))
    turned = np.concatenate(face) * size @ [[1, sine], [-sine, 1]]
    return turned + rng.uniform(88, 104, 2)


def draw_face(points, rng):
    image = Image.new("RGB", (192, 192), tuple(rng.integers(30, 200, 3)))
    draw = ImageDraw.Draw(image)
    skin = rng.uniform(0.6, 1.1) * np.array([224, 180, 150])
    forehead = points[0] + points[16] - points[:17]
    head = np.concatenate([points[:17], forehead])
    draw.polygon(head.ravel().tolist(), fill=tuple(skin.astype(int)))
    for first, end in ((17, 22), (22, 27), (27, 31), (31, 36)):
        draw.line(points[first:end].ravel().tolist(), fill="#402010", width=4)
    for first, end in ((36, 42), (42, 48), (48, 60), (60, 68)):
        fill = "brown" if first == 48 else "white"
        draw.polygon(points[first:end].ravel().tolist(), fill=fill, outline="#402010")
    return image


rng = np.random.default_rng(0)
folder = Path(tempfile.mkdtemp())
for split, num_faces in (("train", 200), ("test", 40)):
    with (folder / f"{split}.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image", *(f"{axis}{i}" for i in range(68) for axis in "xy")])
        for i in range(num_faces):
            points = face_points(rng)
            draw_face(points, rng).save(folder / f"{split}_{i}.png")
            rows.writerow([f"{split}_{i}.png", *points.round(2).ravel()])
print((folder / "train.csv").read_text().splitlines()[1][:60], "...")

# %%
# A schema gives the numbers a meaning
# ------------------------------------
# ``schema="face_68"`` names the 68 points in their order, the pairs that a mirror
# exchanges, the lines of a drawing, and the two points whose distance the error is divided
# by. Other schemas are ``face_5``, ``face_98`` (WFLW) and ``coco_17``. Your own is a dict
# with ``names`` and ``flip_pairs``. The file has no boxes, so each face gets the box around
# its points.

options = {"schema": "face_68", "class_name": "face"}
source = FormatSource(
    "keypoints_csv", folder, train="train.csv", test="test.csv", options=options
)
(table,) = source.tables("train")
print(f"{table.num_images} faces, {len(table.keypoint_names)} points")
print(f"{len(table.flip_pairs)} mirror pairs, such as {table.flip_pairs[0]}")
print("the error is divided by the distance of points", table.normalization_pair)

# %%
# Check order and mirror pairs
# ----------------------------
# Flipping an image moves the left eye to the right side, where its name must become
# right eye. Otherwise, half of all training images teach wrong names. So look at a face
# and its mirror image. The first point of each pair is blue, and the second is orange:
#
# - The lines follow the face, so the points are in the right order.
# - Each colour is on the same side in both halves, so the mirror pairs are right. Points of a
#   wrong pair would change sides, and points without a pair are white.
#
# For your own data, ``lit-loader show DATA --mirrored`` draws such pictures.

figure, ax = plt.subplots(figsize=(9, 4.2), layout="constrained")
ax.imshow(draw_mirrored(table, 0).permute(1, 2, 0))
ax.set_axis_off()
plt.show()

# %%
# Crops for training
# ------------------
# A sample is a face, not an image. The data module cuts a square around the box, with a
# margin, and in training it also turns, shifts and flips the square. A flip exchanges the
# mirror pairs. A point that leaves the crop counts as absent, and ``mask`` keeps it out of
# the loss.

seed_everything(0, verbose=False)
datamodule = LandmarkDataModule(
    source,
    batch_size=16,
    train_transforms={"size": 64, "margin": 0.15, "rotation": 15.0, "shift": 0.05},
    val_transforms={"size": 64, "margin": 0.15},
)
batch = datamodule.first_batch("train")
print("images", tuple(batch.images.shape))
print("keypoints", tuple(batch.keypoints.shape), "mask", tuple(batch.mask.shape))

# %%
# Train and test
# --------------
# `LandmarkTask` predicts a heatmap for each point. Its test reports the normalized mean
# error (NME): the mean distance between predicted and true points, divided by the distance
# of the outer eye corners. Always say what an NME is divided by: divided by the size of the
# box, the same errors give a much smaller number. (``barebones`` switches off Lightning's
# checkpoints, loggers and progress bar.)

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")
torch.set_num_threads(1)
task = LandmarkTask(
    partial(heatmaps_small, channels=16, head_channels=68),
    optimizer=partial(torch.optim.AdamW, lr=0.005),
    scheduler=partial(WarmupCosineLR, warmup_steps=20),
    **model_kwargs_from_datamodule(datamodule),
)
trainer = Trainer(accelerator="cpu", max_epochs=6, limit_val_batches=0, barebones=True)
trainer.fit(task, datamodule=datamodule)
trainer.test(task, datamodule=datamodule, verbose=False)
print(f"NME {task.test_scores.nme:.3f}")

# %%
# Look at the predictions
# -----------------------
# `draw_predictions` draws the predicted points in red, and joins each to its true point.

figure = draw_predictions(
    task, datamodule, datamodule.first_batch("test"), max_images=6
)

# %%
# Next steps
# ----------
# - The same from the command line, with checkpoints and a report:
#   ``lit-loader convert keypoints_csv ... --to voc``, then
#   ``lit-loader train experiment=faces dataset.root=faces-xml``.
# - With thousands of real faces, start from a pretrained backbone:
#   ``LandmarkTask("resnet18", weights="DEFAULT", ...)``, see :doc:`/training/landmarks`.
# - This test cuts crops around annotated boxes. Around the boxes of a detector, the error
#   is larger.

# sphinx_gallery_thumbnail_number = -1
