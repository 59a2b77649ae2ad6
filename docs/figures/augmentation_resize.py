import matplotlib.pyplot as plt
from drawn_images import sample, shapes, show
from lit_loader import detection_transforms
from torchvision.transforms import v2

WIDE = v2.RandomCrop((90, 150))
SETTINGS = {
    "the image, 90 x 150": {},
    "size=60": {"size": 60},
    "size=60, max_size=80": {"size": 60, "max_size": 80},
    "size=[120, 120]": {"size": [120, 120]},
    "size=[120, 120],\nletterbox=True, fill=114": {
        "size": [120, 120],
        "letterbox": True,
        "fill": 114,
    },
}
figure, panels = plt.subplots(1, 5, figsize=(10, 2.9), layout="constrained")
for axes, (title, settings) in zip(panels, SETTINGS.items(), strict=True):
    transforms = detection_transforms(
        False, extra_before=[WIDE], to_float=False, **settings
    )
    image, target = sample(shapes(), 0, transforms, seed=1)
    show(
        axes,
        image,
        target,
        f"{title}\n→ {image.shape[1]} x {image.shape[2]}" if settings else title,
        canvas=152,
    )
