"""Every task's experiment fits, tests, reports and draws; txt lists become one XML set that trains all of them."""

from __future__ import annotations

import re
import shlex
import sys
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
QUICK = [
    "show_progress=false",
    "trainer.max_epochs=1",
    "trainer.limit_train_batches=4",
    "trainer.check_val_every_n_epoch=1",
    "datamodule.batch_size=8",
    "workers.num_workers=1",
    "model.channels=16",
    "model.head_channels=32",
    "model.warmup_steps=1",
]
SMALL_SET = [
    "dataset.num_images={train: 40, val: 12, test: 12}",
    "dataset.image_size=64",
    "dataset.class_shares=[0.4,0.4,0.2]",
    "dataset.finish_shares=[0.5,0.3,0.2]",
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run(scripts, cache, tmp_path):
    def run(script, *words):
        done = scripts.run(script, *words, cwd=tmp_path, env={"XDG_CACHE_HOME": str(cache)})
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture
def train(run, tmp_path):
    return partial(run, ROOT / "examples" / "train.py", f"hydra.run.dir={tmp_path}/run")


def command():
    """The program as it was installed."""
    return Path(sys.executable).parent / "lit-loader"


@pytest.mark.parametrize(
    ("experiment", "told"),
    [
        ("landmarks", ["NME", "failures above 0.1", "recall", "square"]),
        ("shapes_finish", ["accuracy", "macro-F1", "hollow"]),
    ],
)
def test_it_fits_tests_reports_and_draws(experiment, told, train, tmp_path):
    printed = train(f"experiment={experiment}", *SMALL_SET, *QUICK)
    assert_reported_and_drawn(printed, told, tmp_path)


def assert_reported_and_drawn(printed, told, folder):
    for part in (*told, "arrived", "expected", "ClassBalancedSampler", "tested: best checkpoint"):
        assert part in printed
    for picture in ("batch.png", "predictions.png"):
        assert (folder / "run" / picture).stat().st_size > 5000


def test_all_tasks_at_once_do_so_too_and_balancing_follows_the_attribute_that_is_named(train, tmp_path):
    balanced = train("experiment=unified", "sampler.balance_by=finish", *SMALL_SET, *QUICK)
    told = ["mAP@50", "NME", "finish macro-F1", "finish: recall", "star"]
    assert_reported_and_drawn(balanced, told, tmp_path)
    (row,) = re.findall(r"hollow +│ +(\S+) +│ +(\S+) +│ +(\S+) +│", balanced[balanced.index("arrived") :])
    natural, expected, _ = (float(share.rstrip("%")) for share in row)
    assert natural == pytest.approx(20, abs=1)
    assert expected > natural + 2


def test_without_validation_the_last_weights_are_tested(train):
    printed = train("experiment=landmarks", *SMALL_SET, "~dataset.num_images.val", *QUICK)
    assert "last weights: no validation ran" in printed


def test_without_a_test_split_a_run_ends_with_its_pictures(train, tmp_path):
    printed = train("experiment=landmarks", *SMALL_SET, "~dataset.num_images.test", *QUICK)
    assert "tested: nothing, there is no test split" in printed
    assert (tmp_path / "run/predictions.png").stat().st_size > 5000


def commands_of_the_readme(holding):
    """Return the README's block of commands that holds a word, each as a list of words."""
    (block,) = (b for b in re.findall(r"```bash\n(.*?)```", README, re.DOTALL) if holding in b)
    return [shlex.split(line, comments=True) for line in block.replace("\\\n", " ").strip().splitlines()]


def test_the_three_commands_of_the_readme_lead_from_txt_lists_to_a_trained_model(run, train, tmp_path):
    lists, convert, fit = commands_of_the_readme("txt_lists.py")
    assert lists[1] == "examples/txt_lists.py"
    assert convert[0].endswith("bin/lit-loader")
    assert fit[1] == "examples/train.py"
    small = ["--train", "40", "--val", "12", "--test", "12"]
    told = run(ROOT / lists[1], *lists[2:], *small)
    (suggested,) = re.findall(r"^next: (.*)$", told, re.MULTILINE)
    assert shlex.split(suggested)[1:] == convert[1:]  # what the script says is what the README says
    printed = run(command(), *convert[1:])
    assert "train" in printed
    assert len(list((tmp_path / "shapes-xml" / "Annotations").glob("*.xml"))) == 64
    printed = train(*fit[2:], *QUICK)
    assert "mAP@50" in printed
    assert "hollow" in printed


@pytest.mark.soak
def test_the_same_on_real_points(run, train, tmp_path, shared_data):
    convert, fit = commands_of_the_readme("path/to/udacity_faces")
    words = [str(shared_data / "udacity_faces") if "udacity" in word else word for word in convert[1:]]
    printed = run(command(), *words)
    assert "keypoint_outside" in printed
    assert len(list((tmp_path / "faces-xml" / "Annotations").rglob("*.xml"))) == 79 + 16
    printed = train(*fit[2:], *QUICK, "datamodule.train_transforms.size=32")
    assert "NME" in printed


@pytest.mark.soak
def test_dlibs_faces_from_imglab_xml(run, train, shared_data):
    names = [f"{split}ing_with_face_landmarks.xml" for split in ("train", "test")]
    words = ["convert", "imglab", shared_data / "dlib_faces", f"train={names[0]}", f"test={names[1]}"]
    words += ["--to", "voc", "--out", "dlib-xml", "--option", "schema=face_68"]
    run(command(), *words)
    overrides = ["experiment=faces", "dataset.root=dlib-xml", "dataset.val=null"]
    printed = train(*overrides, *QUICK, "datamodule.train_transforms.size=32")
    assert "last weights: no validation ran" in printed
    assert re.search(r"objects measured +│ 25 ", printed)
