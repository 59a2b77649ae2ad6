"""Schedules in data modules: in runs of Lightning, in checkpoints, in summaries and in pictures."""

from __future__ import annotations

import hashlib

import pytest
import torch
from lightning.pytorch import LightningModule
from torchvision.transforms import v2

from lit_loader import (
    AspectRatioBatching,
    BatchChoice,
    ClassificationDataModule,
    DetectionDataModule,
    EpochRange,
    FunctionSchedule,
    LinearSchedule,
    Mosaic,
    ScheduledTransform,
    WeightedRandomSampler,
)
from lit_loader.callbacks import PictureLogger
from lit_loader.collate import batch_images
from lit_loader.datamodules import WorkerSettings
from lit_loader.datamodules.schedule_report import draw_schedules, schedule_table
from lit_loader.errors import SettingError
from tests.support.drawn_set import drawn_source
from tests.support.lightning_resuming import Save, fitted

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*has shuffling enabled"),
]

END = 2  # first epoch with plain transforms
NUM_BATCHES = 6
MAX_EPOCHS = 4
PLAIN = {"hflip": 0.0, "photometric": 0.0, "size": 48}
SCHEDULED = {
    "hflip": {"points": {0: 1.0, END: 0.0}},
    "photometric": {"epochs": [0, END], "value": 1.0},
    "size": {"points": {0: 32, END: 48}, "step": 8},
    "extra_after": [ScheduledTransform(v2.RandomInvert(p=1), epochs=[0, END])],
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return drawn_source(tmp_path_factory.mktemp("drawn"))


class Digests(LightningModule):
    """A model of one weight that records a digest of the images of each training batch."""

    make_val = None

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.seen = []

    def training_step(self, batch, batch_idx):
        pixels = b"".join(image.contiguous().numpy().tobytes() for image in batch_images(batch))
        self.seen.append(hashlib.sha256(pixels).hexdigest())
        return self.weight.sum()

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def run(source, transforms, *, callbacks=(), ckpt_path=None, **settings):
    """Return the digests of a run, by batch."""
    arguments = {"batch_size": 24 // NUM_BATCHES, "seed": 5, "train_transforms": transforms, **settings}
    datamodule = DetectionDataModule(source, **arguments)
    model = fitted(Digests(), datamodule=datamodule, callbacks=callbacks, ckpt_path=ckpt_path, max_epochs=MAX_EPOCHS)
    return model.seen


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_schedule_ends_with_persistent_workers(source, method):
    """ultralytics#25762: workers that persist, and that work on the next epoch before this one ends."""
    settings = WorkerSettings(num_workers=2, persistent_workers=True, prefetch_factor=4, worker_method=method)
    seen = run(source, SCHEDULED, workers=settings)
    plain = run(source, PLAIN)
    end = END * NUM_BATCHES
    assert len(seen) == MAX_EPOCHS * NUM_BATCHES
    assert seen[end:] == plain[end:]
    assert not set(seen[:end]) & set(plain[:end])
    assert seen == run(source, SCHEDULED)


def test_schedule_ends_after_a_resume(source, tmp_path):
    """ultralytics#25762: a run that is resumed within an epoch, before and after the end of the schedule."""
    save = Save(tmp_path)
    unbroken = run(source, SCHEDULED, callbacks=[save])
    saved = dict(save.saved)
    for num_seen in (NUM_BATCHES + 2, END * NUM_BATCHES + 1):
        path = saved.get(num_seen - 1, saved.get(num_seen))
        resumed = run(source, SCHEDULED, ckpt_path=path, num_workers=2)
        assert resumed == unbroken[len(unbroken) - len(resumed) :]
        assert len(unbroken) - len(resumed) in (num_seen - 1, num_seen)


def test_batches_of_similar_images_have_one_drawn_size(source):
    transforms = {"size": {"choices": [[32, 32], [48, 48]]}}
    batching = AspectRatioBatching(num_buckets=2)
    datamodule = DetectionDataModule(source, batch_size=4, seed=5, train_batching=batching, train_transforms=transforms)
    datamodule.setup("fit")
    loader = datamodule.train_dataloader()
    sizes = [{tuple(image.shape[-2:]) for image in images} for _ in range(3) for images, _ in loader]
    assert all(len(batch_sizes) == 1 for batch_sizes in sizes)
    assert set.union(*sizes) == {(32, 32), (48, 48)}
    # Evaluation has the largest size.
    assert {tuple(image.shape[-2:]) for images, _ in datamodule.val_dataloader() for image in images} == {(48, 48)}


def scheduled_module(source, **settings):
    transforms = {"hflip": LinearSchedule({0: 0.5, 8: 0.0}), "size": {"choices": [32, 48]}, **settings}
    extra = ScheduledTransform(v2.GaussianBlur, kernel_size=3, sigma={"points": {0: 0.5, 4: 1.0}})
    transforms["extra_after"] = [extra]
    return DetectionDataModule(source, batch_size=4, train_transforms=transforms, mixing=Mosaic(p=EpochRange([0, 6])))


def test_summary_shows_schedules_by_epoch(source):
    lines = scheduled_module(source).summary().splitlines()
    start = lines.index(next(line for line in lines if line.startswith("schedules, by epoch")))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines[start:] if line.startswith("│")]
    assert rows == [
        ["train_transforms.hflip", "0.5", "0.25", "0.125", "0"],
        ["train_transforms.extra_after[0] GaussianBlur.sigma", "0.5", "1", "1", "1"],
        ["mixing[0] Mosaic.p", "1", "1", "0", "0"],
    ]
    assert "train_transforms.size: one of [32, 48] a batch" in lines
    assert "  hflip: linear through 0.5 at 0, 0 at 8" in lines
    assert "schedules" not in DetectionDataModule(source).summary()


class Blend(Mosaic):
    """A mix with settings in a list."""

    def __init__(self, strengths):
        super().__init__()
        self.strengths = strengths


def test_schedules_are_found_in_mixes_samplers_compositions_and_batch_transforms(source):
    fading = FunctionSchedule(last_epoch)
    weights = EpochRange([0, 3], [1.0] * 24, [2.0] + [1.0] * 23)
    inner = ScheduledTransform(v2.RandomInvert(p=1), epochs=[0, 4])
    datamodule = DetectionDataModule(
        source,
        train_sampler=WeightedRandomSampler(weights),
        mixing={"grid": Mosaic(p=EpochRange([0, 6])), "blend": Blend([fading, 1.5])},
        train_transforms=ScheduledTransform(v2.Compose([inner, v2.Identity()]), epochs=[0, 5]),
        batch_transforms=ScheduledTransform(v2.RandomGrayscale(p=1), epochs=[1, 2]),
    )
    assert {name: schedule.breakpoints() for name, schedule in datamodule.schedules().items()} == {
        "train_transforms.epochs": (0, 5),
        "train_transforms.transform[0] RandomInvert.epochs": (0, 4),
        "train_sampler.schedules[0]": (0, 3),
        "mixing.grid.p": (0, 6),
        "mixing.blend.strengths[0]": (),
        "batch_transforms.epochs": (1, 2),
    }


def test_functions_are_shown_where_they_are_defined():
    schedules = {
        "a": FunctionSchedule(list(range(12)).__getitem__),
        "b": EpochRange([0, 20]),
        "c": BatchChoice([1, 2]),
        "d": EpochRange([2, 3], "on", "off"),
    }
    lines = schedule_table(schedules).splitlines()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    assert rows == [
        ["a", "0", "1", "2", "3", "10", "n/a"],
        ["b", "1", "1", "1", "1", "1", "0"],
        ["d", "off", "off", "on", "off", "off", "off"],
    ]
    assert lines[-1] == "c: one of [1, 2] a batch"
    figure = draw_schedules(schedules)
    assert figure.axes[0].lines[0].get_xdata()[-1] == 12
    assert figure.axes[1].get_xlim() == (0, 100)
    # Off is below on.
    assert figure.axes[3].lines[0].get_ydata()[:4].tolist() == [0, 0, 1, 0]
    assert [label.get_text() for label in figure.axes[3].get_yticklabels()] == ["off", "on"]


def test_table_says_how_many_epochs_it_leaves_out():
    text = schedule_table({"a": LinearSchedule({epoch: epoch % 2 for epoch in range(30)})})
    assert text.splitlines()[-1] == "22 epochs with changes are not shown; see plot_schedules()"


def test_first_batch_has_the_schedules_of_its_epoch(source):
    datamodule = DetectionDataModule(source, batch_size=4, train_transforms={"size": SCHEDULED["size"]})
    shapes = [datamodule.first_batch("train", epoch=epoch)[0][0].shape[-2:] for epoch in (0, END, 0)]
    assert [min(shape) for shape in shapes] == [32, 48, 32]
    sampler = datamodule.train_dataloader().sampler
    datamodule.first_batch("train", epoch=7)
    assert (sampler.epoch, sampler.num_epochs_set) == (0, 0)
    assert len(datamodule.plot_batch(epoch=END, max_images=2).axes) == 2


def test_plot_draws_each_schedule(source, tmp_path):
    figure = scheduled_module(source).plot_schedules(12, path=tmp_path / "schedules.png")
    assert (tmp_path / "schedules.png").stat().st_size > 1000
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles == list(scheduled_module(source).schedules())
    (line,) = figure.axes[1].lines
    assert line.get_ydata()[:9].tolist() == [0.5 - epoch / 16 for epoch in range(9)]
    assert line.get_xdata()[-1] == 12
    with pytest.raises(SettingError, match="no schedule to draw"):
        DetectionDataModule(source).plot_schedules()
    with pytest.raises(SettingError, match="num_epochs=0 must be at least 1"):
        scheduled_module(source).plot_schedules(0)


def test_picture_logger_writes_schedules(source, tmp_path):
    for name, transforms in {"scheduled": SCHEDULED, "plain": PLAIN}.items():
        run(source, transforms, callbacks=[PictureLogger(folder=tmp_path / name)])
    assert (tmp_path / "scheduled/schedules.png").exists()
    assert not (tmp_path / "plain/schedules.png").exists()


def test_checkpoint_keeps_schedules(source):
    datamodule = scheduled_module(source, photometric={"epochs": [0, 3], "value": 0.5})
    keywords = datamodule.hparams["train_transforms"]
    assert keywords["hflip"] == {"points": [[0, 0.5], [8, 0.0]], "step": None}
    copied = DetectionDataModule(source, train_transforms=keywords)
    names = [name for name in datamodule.schedules() if "extra" not in name and "mixing" not in name]
    assert copied.schedules() == {name: datamodule.schedules()[name] for name in names}


def test_checkpoint_of_other_schedules_is_noticed(source):
    def record(points):
        datamodule = DetectionDataModule(source, train_transforms={"hflip": {"points": points}})
        datamodule.setup("fit")
        return datamodule.state_dict()["data"]["sets"]["train"]["texts"]["transforms"]

    assert record({0: 0.5, 9: 0}) == record([[9, 0], [0, 0.5]])
    assert record({0: 0.5, 9: 0}) != record({0: 0.5, 10: 0})


def last_epoch(epoch):
    return 32 + epoch


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        ({"hflip": {"points": {0: 0.5, 10: 2}}}, "is not a probability"),
        ({"size": FunctionSchedule(last_epoch)}, "has no last value, which evaluation uses"),
        ({"rotation": {"point": {0: 1}}}, "describes no schedule"),
    ],
)
def test_wrong_schedule_is_refused_by_the_constructor(source, transforms, message):
    with pytest.raises(SettingError if "prob" not in message else ValueError, match=message):
        DetectionDataModule(source, train_transforms=transforms)


def test_scheduled_classification_reads_images_without_targets(source):
    transforms = {"size": 32, "hflip": {"points": {0: 0.5, 4: 0.0}}}
    datamodule = ClassificationDataModule(source, batch_size=4, multi_label=True, train_transforms=transforms)
    datamodule.setup("fit")
    assert next(iter(datamodule.train_dataloader())).images.shape[1:] == (3, 32, 32)


@pytest.mark.parametrize("val_transforms", [None, {"size": [40, 40]}])
def test_callable_schedule_is_compared_with_evaluation(source, val_transforms):
    training = ScheduledTransform(v2.Resize, size={"epochs": [0, 2], "value": [40, 40], "otherwise": [32, 32]})
    datamodule = DetectionDataModule(source, train_transforms=training, val_transforms=val_transforms)
    if val_transforms is None:
        with pytest.warns(UserWarning, match="40x40"):
            datamodule.setup("fit")
    else:
        datamodule.setup("fit")
