"""``lit-loader pack`` writes shards of the sets that it finds, and checks them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lit_loader.annotations.fingerprint import table_digests
from lit_loader.annotations.formats import read_annotations
from lit_loader.annotations.packing import PACKED_KEY
from lit_loader.annotations.table import AnnotationTable
from tests.support.face_lists import OPTIONS, READ
from tests.support.packed_sets import contents, flip_byte

PACK = ("pack", "keypoints_txt", "faces", "train=train.txt", "val=val.txt", *READ, "--shard-size", "40KiB")


def test_lists_become_shards_with_the_same_annotations(command, faces, tmp_path):
    out = command(*PACK, "--to", "packed", "--verify")
    assert "packed 26 images in " in out
    assert "verified: all shards and tables have their digests" in out
    assert "lit-loader train experiment=landmarks" in out
    assert "dataset=packed dataset.root=packed dataset.test=val" in out
    for split in ("train", "val"):
        stored = AnnotationTable.load(tmp_path / f"packed/{split}.arrow", key=PACKED_KEY)
        original = read_annotations("keypoints_txt", faces, f"{split}.txt", progress=False, **OPTIONS)
        assert table_digests(stored) == table_digests(original)
    shards = sorted(path.name for path in (tmp_path / "packed/shards").iterdir())
    assert {name[:5] for name in shards} == {"train", "val-0"}
    assert max(path.stat().st_size for path in (tmp_path / "packed/shards").iterdir()) <= 40 * 1024


def test_sets_of_a_found_layout_are_packed_by_their_names(command, voc, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    voc.add("a")
    voc.split("train", "a\n")
    out = command("pack", voc.root, "--to", tmp_path / "packed")
    assert "packed 1 images in 1 shards" in out
    assert (tmp_path / "packed/shards/train-000000.tar").is_file()


def test_append_reports_what_was_packed_before(command, faces, tmp_path):
    command(*PACK, "--to", "packed")
    earlier_files = contents(tmp_path / "packed/shards")
    command(*PACK, "--to", "packed", code=1)
    assert "--append" in command.err
    out = command("pack", "keypoints_txt", "faces", "train=all.txt", *READ, "--to", "packed", "--append")
    assert "packed 4 images in 1 shards" in out
    assert "26 images were packed before" in out
    assert earlier_files.items() < contents(tmp_path / "packed/shards").items()


def test_verify_alone_names_the_difference(command, faces, tmp_path):
    command(*PACK, "--to", "packed")
    assert "verified" in command("pack", "--to", "packed", "--verify")
    flip_byte(tmp_path / "packed/shards/val-000000.tar", 520)
    out = command("pack", "--to", "packed", "--verify", code=1)
    assert re.search(r"shards/val-000000\.tar: the image '\S+\.png' differs", out)
    assert contents(tmp_path / "packed").keys().isdisjoint({".packing/lock"})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("pack", "--to", "packed"), "give a data set to pack, or --verify"),
        (("pack", "--to", "empty", "--verify"), "no packed set is there"),
        ((*PACK, "--to", "packed", "--shard-size", "many"), "--shard-size='many' is not a positive number of bytes"),
        ((*PACK, "--to", "faces/packed"), "is in faces, which is read"),
        ((*PACK, "--to", "s3://key:secret@bucket/x"), "must not contain a login"),
        ((*PACK, "--to", "packed", "--storage", "region=x"), "--storage is for the URL of a store, and --to packed"),
        ((*PACK, "--to", "s3://bucket/x", "--storage", "token=secret"), "may be a credential"),
    ],
)
def test_wrong_arguments_are_errors_with_the_rule(command, faces, words, message):
    code = 1 if "empty" in words else 2
    command(*words, code=code)
    assert message in command.err
    assert "secret" not in command.err


def test_storage_settings_are_those_of_the_target(command, faces, monkeypatch):
    settings = []

    def run_job(name, store_settings, request, *, progress):
        settings.append(dict(store_settings.options))
        raise KeyboardInterrupt

    monkeypatch.setattr("lit_loader.storage.pack_target.run_job", run_job)
    command(*PACK, "--to", "s3://bucket/x", "--storage", "endpoint=http://127.0.0.1:1", code=130)
    assert settings == [{"endpoint": "http://127.0.0.1:1"}]
    assert "stopped; run the same command again to continue" in command.err


@pytest.mark.soak
def test_run_killed_by_a_signal_continues(faces, tmp_path):
    words = [sys.executable, "-c", "from lit_loader.app.commands.main import main; raise SystemExit(main())", *PACK]
    subprocess.run([*words, "--to", "once"], check=True, capture_output=True)
    for delay in (0.5, 0.7, 0.9, 1.1, 1.3):
        process = subprocess.Popen([*words, "--to", f"{delay}"], stdout=subprocess.DEVNULL)
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if not Path(f"{delay}/catalog.arrow").exists():
            subprocess.run([*words, "--to", f"{delay}"], check=True, capture_output=True)
        assert contents(tmp_path / f"{delay}") == contents(tmp_path / "once")


def test_json_of_a_member_is_documented(command, faces, tmp_path):
    import tarfile

    command(*PACK, "--to", "packed")
    with tarfile.open(tmp_path / "packed/shards/val-000000.tar") as tar:
        record = json.load(tar.extractfile("00000000.json"))
    text = Path(__file__).parents[3].joinpath("docs/scale/packed.md").read_text()
    assert all(f"`{name}`" in text for name in record)
