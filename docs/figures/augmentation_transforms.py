import matplotlib.pyplot as plt
from drawn_images import sample, shapes, show
from lit_loader import detection_transforms
from torchvision.transforms import v2

PLAIN = {"hflip": 0.0, "to_float": False}
SETTINGS = {
    "the image": {},
    "hflip=1.0": {"hflip": 1.0},
    "vflip=1.0": {"vflip": 1.0},
    "photometric=1.0": {"photometric": 1.0},
    "rotation=30": {"rotation": 30.0, "fill": 114},
    "zoom_out=1.0": {"zoom_out": 1.0, "fill": 114},
    "iou_crop=1.0": {"iou_crop": 1.0},
    "extra_before=[RandomAffine(20)]": {
        "extra_before": [v2.RandomAffine(20, shear=15, fill=114)]
    },
}
figure, panels = plt.subplots(2, 4, figsize=(10, 5.2), layout="constrained")
for axes, (title, settings) in zip(panels.flat, SETTINGS.items(), strict=True):
    image, target = sample(
        shapes(), 0, detection_transforms(True, **PLAIN | settings), seed=8
    )
    show(axes, image, target, title)
