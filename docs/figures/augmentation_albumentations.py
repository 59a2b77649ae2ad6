import matplotlib.pyplot as plt
from drawn_images import sample, shapes, show
from lit_loader import detection_transforms
from lit_loader.transforms import AlbumentationsTransform

try:
    import albumentations as A
except ImportError:  # not in the packages that the site needs
    A = None

figure, panels = plt.subplots(1, 4, figsize=(10, 2.9), layout="constrained")
pipelines = {"the image": []}
if A is not None:
    pipelines |= {
        "RandomBrightnessContrast": [A.RandomBrightnessContrast(0.4, 0.4, p=1.0)],
        "Affine": [A.Affine(rotate=(-25, 25), scale=(0.8, 1.2), p=1.0)],
        "CoarseDropout": [
            A.CoarseDropout(num_holes_range=(6, 6), hole_height_range=(16, 24), p=1.0)
        ],
    }
for axes, (title, transforms) in zip(panels, pipelines.items(), strict=False):
    # Albumentations warns of settings of boxes in a pipeline that ignores them.
    boxes = (
        None
        if title == "RandomBrightnessContrast"
        else A.BboxParams("coco", label_fields=["rows"])
    )
    extra = (
        [AlbumentationsTransform(A.Compose(transforms, bbox_params=boxes))]
        if transforms
        else []
    )
    preset = detection_transforms(True, hflip=0.0, extra_before=extra, to_float=False)
    show(axes, *sample(shapes(), 1, preset, seed=3), title)
for axes in panels[len(pipelines) :]:
    axes.axis("off")
