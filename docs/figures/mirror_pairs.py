"""A drawn figure, its mirror image with the schema's mirror pairs, and without them."""

import tempfile

import matplotlib.pyplot as plt
from lit_loader import FiguresSource
from lit_loader.inspection import draw_mirrored

with tempfile.TemporaryDirectory() as folder:
    settings = {
        "objects_per_image": (1, 1),
        "image_size": 224,
        "class_shares": (0.75, 0.25),
    }
    source = FiguresSource(
        num_images={"train": 4}, cache_dir=folder, progress=False, **settings
    )
    (table,) = source.tables("train")
    right = draw_mirrored(table, 0, longer_side=420)
    wrong = draw_mirrored(table, 0, flip_pairs=(), longer_side=420)

_, axes = plt.subplots(1, 2, figsize=(11, 3.4), layout="constrained")
axes[0].imshow(right.permute(1, 2, 0))
axes[0].set_title("with mirror pairs: names fit the mirror image", fontsize=11)
axes[1].imshow(wrong.permute(1, 2, 0))
axes[1].set_title("without pairs: left and right are exchanged", fontsize=11)
for ax in axes:
    ax.axis("off")
