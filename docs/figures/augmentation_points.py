from typing import Any

import matplotlib.pyplot as plt
from drawn_images import BLUE, ORANGE, RED, figures, sample, show
from lit_loader import detection_transforms
from matplotlib.axes import Axes
from torchvision.transforms import v2

PLAIN = {"hflip": 0.0, "to_float": False}
source = figures()
source.prepare()
table = source.tables("train")[0]
left_points = [
    i for i, name in enumerate(table.keypoint_names) if name.startswith("left")
]
right_points = [
    i for i, name in enumerate(table.keypoint_names) if name.startswith("right")
]


def draw(axes: Axes, title: str, transforms: Any) -> None:
    image, target = sample(source, 1, transforms, keypoints=True, seed=2)
    show(
        axes,
        image,
        target | {"boxes": target["boxes"][:0], "labels": target["labels"][:0]},
        title,
    )
    for points, visibility in zip(
        target["keypoints"], target["visibility"], strict=True
    ):
        for places, color, marker in (
            (left_points, ORANGE, "o"),
            (right_points, BLUE, "s"),
        ):
            shown = [i for i in places if visibility[i]]
            x, y = points[shown].T
            axes.scatter(
                x,
                y,
                s=26,
                color=color,
                marker=marker,
                edgecolors="white",
                linewidths=0.6,
                zorder=3,
            )


figure, panels = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
draw(panels[0], "the image", detection_transforms(False, to_float=False))
mirrored = detection_transforms(
    True, **PLAIN | {"hflip": 1.0}, flip_pairs=table.flip_pairs
)
draw(panels[1], "lit_loader's flip: left stays left", mirrored)
wrong = v2.Compose([v2.RandomHorizontalFlip(p=1.0)])
draw(panels[2], "torchvision's flip: left and right change places", wrong)
panels[2].title.set_color(RED)
panels[0].scatter([], [], color=ORANGE, marker="o", label="points named left_...")
panels[0].scatter([], [], color=BLUE, marker="s", label="points named right_...")
figure.legend(loc="outside lower center", ncols=2, frameon=False)
