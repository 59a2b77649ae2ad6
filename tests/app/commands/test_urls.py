"""Commands on the URL of a store: the results of the folder, and a reason where they need files of this host."""

from __future__ import annotations

import gc
import json
import os
import shlex
import signal
import time
from contextlib import suppress
from importlib.util import find_spec

import psutil
import pytest

from tests.support.url_sets import NUM_IMAGES, write_sets

# Not by importorskip, because obstore must not be imported where tests fork.
needs_obstore = pytest.mark.skipif(find_spec("obstore") is None, reason="the extra storage is not installed")


@pytest.fixture
def sets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_sets(tmp_path / "sets")
    return tmp_path / "sets"


def is_fetch_process(process):
    # A process that has ended has no command line.
    with suppress(psutil.NoSuchProcess):
        return "fetch_process" in str(process.cmdline())
    return False


@pytest.fixture
def end_fetch_processes():
    """End the fetch processes of a test, which would wait for other clients."""
    yield
    # The command's connection ends when it is collected.
    gc.collect()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        processes = [process for process in psutil.Process().children() if is_fetch_process(process)]
        if not processes:
            return
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
        time.sleep(0.02)


@needs_obstore
def test_figures_of_a_url_are_those_of_the_folder(command, sets):
    url = (sets / "voc").as_uri()
    local = json.loads(command("index", sets / "voc", "--json"))
    remote = json.loads(command("index", url, "--json"))
    assert remote == local | {"root": url}
    assert remote["sets"]["train"]["images"] == NUM_IMAGES


@pytest.mark.soak
@needs_obstore
def test_images_of_a_url_are_checked_and_shown(command, sets, end_fetch_processes):
    url = (sets / "voc").as_uri()
    local = json.loads(command("check", sets / "voc", "--json"))
    remote = json.loads(command("check", url, "--json"))
    assert remote == local | {"root": url}
    command("check", url)
    assert "5 pictures" in command("show", url, "--out", "remote.html")
    command("show", sets / "voc", "--out", "local.html")
    texts = [(sets.parent / f"{name}.html").read_text() for name in ("local", "remote")]
    # The title has the root.
    assert texts[1].replace(url, str(sets / "voc")) == texts[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "convert voc s3://bucket/set train --to coco --out out",
            "its images are not on this host; pass --images none",
        ),
        ("split voc s3://bucket/set train --folds 2 --lists", "--lists writes files there"),
        ("index voc memory://set train", "error: ROOT memory://set is the memory of one process"),
        ("index voc s3://bucket/set train --storage window=0", "--storage window=0 is not a whole number"),
        ("index voc s3://bucket/set train --storage token=sesame", "AWS_SECRET_ACCESS_KEY"),
        (
            "index voc s3://bucket/set train --storage endpoint=http://me:sesame@host",
            "--storage endpoint=VALUE must not",
        ),
        ("index voc s3://AKIA:se/sesame@bucket/set train", "must not contain a login"),
        ("convert voc s3://me:sesame@bucket/set train --to coco --out out", "must not contain a login"),
        (
            "split voc https://me:sesame@host/set?sig=sesame train --folds 2 --lists",
            "ROOT https://***@host/set must not",
        ),
        ("pack voc s3://me:sesame@bucket/set train --to packed", "must not contain a login"),
        ("pack voc s3://bucket/set train --to packed", "copy the data set to this host"),
    ],
)
def test_use_of_a_url_that_cannot_work_is_refused(command, words, message):
    command(*shlex.split(words), *(["{}.txt"] if words.endswith("--lists") else []), code=2)
    assert message in command.err
    assert "sesame" not in command.err
