"""``lit-loader stats``: distributions and samplers of sets, as text, JSON, picture and page."""

from __future__ import annotations

import json
import shlex

import pytest
from PIL import Image

from lit_loader.app.composition import compose_config
from tests.support.documents import ROOT
from tests.support.extras import needs
from tests.support.face_lists import READ, write_faces

SETS = ("keypoints_txt", "faces", "train.txt", "val.txt", *READ)


def lines_of(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def test_distributions_and_samplers_are_printed(command, faces):
    out = command("stats", *SETS)
    lines = lines_of(out)
    assert "image width, px all 40 40 40 40 40" in lines
    assert "train.txt 40 x 30 20 100.0%" in lines
    assert "sampler=random 20 1 0.0% 0.0%" in lines
    assert any(line.startswith("sampler=class_balanced 20 ") for line in lines)
    assert "angry 20.0% 50.0% 50.0% 50.0% 49.9%" in lines
    padding = [line for line in lines if "padd" in line]
    assert padding == [
        "padding: 2.0% of the pixels with all samplers and batchings, batches of 8, shorter side 800, longer at most "
        "1333, rounded up to multiples of 32"
    ]
    assert not any("cannot balance" in line for line in lines)
    assert command.err == ""
    assert "\x1b" not in out
    assert all(line == line.rstrip() for line in out.splitlines())


def test_padding_of_different_images_is_a_table(command, faces):
    write_faces(faces, "wide.txt", 6, folder="wide", size=(60, 30))
    with (faces / "train.txt").open("a") as file:
        file.write((faces / "wide.txt").read_text())
    lines = lines_of(command("stats", "keypoints_txt", "faces", "train.txt", *READ))
    assert "override batching=plain batching=aspect_ratio batching=size" in lines
    assert not any(line.startswith("padding:") for line in lines)


def test_class_in_all_images_is_the_reason_why_no_sampler_balances(command, voc, tmp_path):
    cells = [("red", 1 + i, 2, 30, 40) for i in range(9)]
    for number in range(10):
        voc.add(f"{number}", *cells, *([("white", 1, 2, 30, 40)] if number < 5 else []))
    voc.split("train", "\n".join(map(str, range(10))))
    words = ["stats", "voc", voc.root, "train", "--cache-dir", tmp_path / "cache", "--no-progress", "--num-workers", 0]
    reason = "100% of the images contain red, so drawing whole images cannot balance the classes"
    assert reason in " ".join(lines_of(command(*words)))
    # A sampler of objects balances them.
    assert reason not in " ".join(lines_of(command(*words, "--samples", "object")))


def test_counts_of_index_are_not_printed_again(command, faces):
    lines = set(lines_of(command("stats", *SETS))) - {""}
    assert not lines & set(lines_of(command("index", *SETS)))


def test_json_has_all_statistics(command, faces):
    report = json.loads(command("stats", *SETS, "--json", "--batch-size", 5))
    index = json.loads(command("index", *SETS, "--json"))
    assert report["training_set"] == "train.txt"
    for name, figures in index["sets"].items():
        assert report["sets"][name]["figures"] == figures
    assert report["sampling"]["samplers"]["sampler=random"]["num_samples"] == 20
    assert report["sampling"]["batch"] == {"batch_size": 5, "size": 800, "max_size": 1333, "size_divisor": 32}


def test_settings_add_rows_and_columns_whose_overrides_compose(command, faces):
    added = [
        "--sampler",
        "class_balanced exponent='{points: {0: 0.5, 9: 1}}' num_samples=30",
        "--batching",
        "size num_buckets=4",
    ]
    report = json.loads(command("stats", *SETS, "--json", *added))
    (sampler,) = (key for key in report["sampling"]["samplers"] if "exponent" in key)
    (batching,) = (key for key in report["sampling"]["samplers"][sampler]["padding"] if "num_buckets" in key)
    cfg = compose_config(ROOT / "conf", "train", ["dataset=shapes", *shlex.split(sampler), *shlex.split(batching)])
    assert cfg.sampler.exponent == {"points": {0: 0.5, 9: 1}}
    assert (cfg.sampler.num_samples, cfg.batching.num_buckets) == (30, 4)
    assert report["sampling"]["samplers"][sampler]["num_samples"] == 30
    # In epoch 0, between the annotated share of 20 % and the balanced one of 50 %.
    assert 0.3 < report["sampling"]["samplers"][sampler]["class_mix"]["angry"] < 0.4


def test_objects_as_samples_are_counted_without_padding(command, faces):
    out = command("stats", *SETS, "--samples", "object")
    assert "samplers of train.txt: 20 objects, 0.0% empty" in out
    assert "padded" not in out
    assert "unseen: objects that an epoch does not contain" in out
    command("stats", *SETS, "--samples", "object", "--batching", "plain", "--size", 64, code=2)
    assert "--size, --batching: objects that are cut out get one size" in command.err


def test_attribute_is_balanced_and_counted(command, voc, tmp_path):
    pose = "<attributes><attribute><name>pose</name><value>{}</value></attribute></attributes>"
    for number in range(10):
        voc.add(f"{number}", ("dog", 1, 2, 30, 40, pose.format("up" if number else "down")))
    voc.split("train", "\n".join(map(str, range(10))))
    words = ["stats", "voc", voc.root, "train", "--cache-dir", tmp_path / "cache", "--no-progress", "--num-workers", 0]
    lines = lines_of(command(*words, "--balance-by", "pose"))
    assert "pose annotated weighted class_balanced class_aware effective_number" in lines
    assert any(line.startswith("sampler=class_aware sampler.balance_by=pose ") for line in lines)
    assert any("the shares of pose stay as annotated with sampler=random" in line for line in lines)
    assert any(line.startswith("down 10.0% 50.0% 50.0% 50.0% ") for line in lines)
    command(*words, "--balance-by", "colour", code=1)
    assert "by='colour'" in command.err


def test_sampler_that_does_not_fit_is_named_with_its_reason(command, faces):
    out = command("stats", *SETS, "--sampler", "class_balanced empty_share=0.25")
    override = "sampler=class_balanced sampler.empty_share=0.25"
    assert f"{override} does not fit: empty_share=0.25, but every image has a class" in out


@needs("plot")
def test_picture_is_written(command, faces):
    out = command("stats", *SETS, "--out", "figures/plots.PNG")
    assert lines_of(out)[-1] == "wrote figures/plots.PNG"
    with Image.open(faces.parent / "figures" / "plots.PNG") as image:
        assert image.format == "PNG"


@needs("plot")
def test_page_has_plots_and_escaped_names(command, voc, tmp_path):
    voc.add("a", ("$&lt;b&gt;\x9b", 1, 2, 30, 40, "<truncated>1</truncated>"), ("other", 5, 5, 9, 9))
    voc.split("train", "a\n")
    cache = ["--cache-dir", tmp_path / "cache", "--no-progress", "--num-workers", 0]
    out = command("stats", "voc", voc.root, "train", *cache, "--page", tmp_path / "page.html")
    assert lines_of(out)[-1] == f"wrote {tmp_path / 'page.html'}"
    assert "\x9b" not in out
    page = (tmp_path / "page.html").read_text()
    assert page.count('src="data:image/png;base64,') == 2
    assert "sampler=class_balanced" in page
    assert "<script" not in page
    assert "$&lt;b&gt;" in page
    assert "objects with a flag" in page
    assert "<b>" not in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "plots.html"], "--out 'plots.html' must end in one of png, svg, pdf; for a page, give --page"),
        (["--sampler", "balanced"], "unknown sampler 'balanced'; choose one of random, "),
        (["--sampler", "weighted power=2"], "--sampler 'weighted power=2': "),
        (["--sampler", "weighted exponent=2"], "--sampler 'weighted exponent=2': "),
        (["--sampler", " "], "--sampler ' ': unknown sampler ''; choose one of random, "),
        (["--sampler", "weighted '"], "No closing quotation; quote values as in a shell"),
        (["--batching", "size num_buckets=1"], "num_buckets=1 must be at least 2"),
        (["--size", "900", "--max-size", "800"], "max_size=800 must be above size=900"),
        (["--size-divisor", "0"], "size_divisor=0 must be at least 1"),
    ],
)
def test_wrong_settings_are_errors_of_usage(command, faces, words, message):
    command("stats", *SETS, *words, code=2)
    assert message in command.err


def test_one_side_of_the_resize_alone_resets_the_other(command, faces):
    def batch(*words):
        shape = json.loads(command("stats", *SETS, "--json", *words))["sampling"]["batch"]
        return shape["size"], shape["max_size"]

    assert batch("--size", 640) == (640, None)
    assert batch("--max-size", 640) == (None, 640)
    assert batch("--size", "none", "--max-size", "none") == (None, None)


def test_real_sets_are_summarised(command, shared_data, tmp_path):
    cache = ["--cache-dir", tmp_path, "--no-progress", "--num-workers", 0]
    out = command("stats", "voc", shared_data / "bccd" / "BCCD", "train", "val", *cache)
    assert "train 23 (0.8%) 855 (30.5%) 1926 (68.7%) 0" in lines_of(out)
    report = json.loads(command("stats", shared_data / "sign_digits_cls", "--json", *cache))
    mix = report["sampling"]["samplers"]["sampler=class_aware"]["class_mix"]
    assert all(abs(share - 0.1) < 0.005 for share in mix.values())
    assert report["sets"]["train"]["areas"]["0"] == {"small": 0, "medium": 0, "large": 0}


def test_packed_sets_have_the_quality_of_their_shuffles(command, faces):
    names = ("train=train.txt", "val=val.txt")
    command("pack", "keypoints_txt", "faces", *names, *READ, "--to", "packed", "--shard-size", "20KiB")
    words = ("packed", "packed", "train", "val", "--no-progress", "--sampler", "block_shuffle open_shards=1")
    lines = lines_of(command("stats", *words))
    assert "override score pairs of a shard class deviation epoch correlation" in lines
    rows = [
        line.split() for line in lines if line.startswith("sampler=") and line.endswith(")") and " sampler." not in line
    ]
    scores = {row[0]: float(row[1]) for row in rows}
    assert scores["sampler=sequential"] < scores["sampler=random"]
    assert any(line.startswith("sampler=block_shuffle sampler.open_shards=1 ") for line in lines)
    sampling = json.loads(command("stats", *words, "--json"))["sampling"]["samplers"]
    assert sampling["sampler=random"]["shuffle"]["score"] == pytest.approx(scores["sampler=random"], abs=5e-4)
    command("stats", *words, "--option", "a=1", code=2)
    assert "--option and --policy are for annotation files" in command.err
    assert "images, " in lines_of(command("check", "packed", "packed", "train", "--no-page", "--no-progress"))[-1]
    assert command("show", "packed", "packed", "val", "--num", "1", "--out", "b.png").startswith("1 picture in b.png")


def test_files_have_no_block_order_unless_it_is_asked_for(command, faces):
    assert "block_shuffle" not in command("stats", *SETS)
    out = command("stats", *SETS, "--sampler", "block_shuffle")
    assert "sampler=block_shuffle does not fit: open_shards=4 mixes the shards of a packed set" in out
