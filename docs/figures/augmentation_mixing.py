import matplotlib.pyplot as plt
from drawn_images import shapes_with_masks, show
from lit_loader import (
    CopyPaste,
    DetectionDataModule,
    MixUp,
    Mosaic,
    SequentialSamplerConfig,
)

MIXES = {
    "no mixing": None,
    "mosaic": Mosaic(),
    "mixup": MixUp(),
    'copy_paste,\nclass_weights="balanced"': CopyPaste(
        class_weights="balanced", num_objects=3
    ),
}
figure, panels = plt.subplots(2, 4, figsize=(10, 5.3), layout="constrained")
for column, (title, mixing) in enumerate(MIXES.items()):
    datamodule = DetectionDataModule(
        shapes_with_masks(),
        batch_size=2,
        masks=True,
        mixing=mixing,
        train_transforms={"hflip": 0.0, "to_float": False},
        train_sampler=SequentialSamplerConfig(),
        first_label=0,
        num_workers=0,
        seed=5,
    )
    images, targets = datamodule.first_batch("train")[:2]
    for row in range(2):
        show(panels[row, column], images[row], targets[row], title if row == 0 else "")
