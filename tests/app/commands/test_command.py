"""The program: help that is quick and whose examples run, exit codes, output to a pipe."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import lit_loader

PROGRAM = Path(sysconfig.get_path("scripts"), "lit-loader")


def examples(text):
    text = text[text.index("Examples:") :].replace("\\\n", " ")
    return [shlex.split(line) for line in re.findall(r"^  lit-loader (.*)$", text, re.MULTILINE)]


@pytest.mark.parametrize("name", ["convert", "index"])
def test_the_examples_of_the_help_run(command, faces, name):
    if name == "index":
        command(*examples(command("convert", "--help"))[0])  # makes faces-xml
    listed = examples(command(name, "--help"))
    assert len(listed) >= 2
    for words in listed:
        command(*words)


@pytest.mark.parametrize("name", ["convert", "index"])
def test_the_help_lists_every_format_with_its_options(command, name):
    out = " ".join(command(name, "--help").split())
    assert "keypoints_txt: text, a line an object" in out
    assert "columns=(required) separator=null" in out
    assert ("formats to write" in out) is (name == "convert")
    assert "exit codes: 0 done" in out


@pytest.mark.parametrize("words", [[], ["convrt"], ["index"], ["convert", "voc", "x", "y", "--to", "coco"]])
def test_a_command_that_is_incomplete_ends_with_two(command, words):
    command(*words, code=2)
    assert "usage: lit-loader" in command.err


def test_the_version_is_told(command):
    assert command("--version") == f"lit-loader {lit_loader.__version__}\n"


def test_the_program_is_installed_and_needs_no_torch(tmp_path, faces):
    done = subprocess.run(
        [PROGRAM, "index", "keypoints_txt", "faces", "nope.txt", "--option", "columns=path class"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "nope.txt" in done.stderr
    assert done.stdout == ""
    code = (
        "import sys; from lit_loader.app.commands import main; main(['--help']); main(['convert', '--help']);"
        "from lit_loader.app.commands import convert, index;"
        "assert not {'torch', 'lightning', 'hydra'} & set(sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "convert" in told


def test_a_reader_that_leaves_early_ends_it_quietly(tmp_path, faces, read):
    words = shlex.join([str(PROGRAM), "index", "keypoints_txt", "faces", "train.txt", "--json", *read])
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; ({words}; echo code $? >&2) | true"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_ctrl_c_is_told_without_a_traceback(command, faces, read, monkeypatch):
    def stopped(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("lit_loader.app.commands.index.index", stopped)
    command("index", "keypoints_txt", "faces", "train.txt", *read, code=130)
    assert command.err == "lit-loader: error: stopped; unfinished output was removed\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_conversion_that_is_ended_leaves_nothing(command, faces, read, tmp_path, monkeypatch, number, code):
    handler = signal.getsignal(signal.SIGTERM)

    def end(*_, **__):
        os.kill(os.getpid(), number)

    monkeypatch.setattr("lit_loader.app.commands.output_folder.os.link", end)
    # a shell's background job ignores them
    interrupts = signal.signal(signal.SIGINT, signal.default_int_handler)
    words = ["convert", "keypoints_txt", "faces", "train.txt", "--to", "voc", "--out", "new", *read]
    try:
        command(*words, code=code)
    finally:
        signal.signal(signal.SIGINT, interrupts)
    assert command.err == "lit-loader: error: stopped; unfinished output was removed\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "faces"]
    assert signal.getsignal(signal.SIGTERM) == handler


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_line(command, faces, read):
    (faces.parent / "file").touch()
    command("index", "keypoints_txt", "faces", "train.txt", *read, "--cache-dir", "file")
    assert command.err.startswith("lit-loader: warning: the cache ")
    assert command.err.count("\n") == 1


@pytest.mark.parametrize("name", ["index", "convert"])
def test_help_and_errors_list_the_actions_of_a_policy(command, faces, name):
    assert "\n  out_of_image=keep (or clip, drop, raise)\n" in command(name, "--help")
    words = ["--to", "voc", "--out", "new"] if name == "convert" else []
    command(name, "keypoints_txt", "faces", "train.txt", "--policy", "malformed=keep", *words, code=2)
    assert "malformed='keep' must be one of 'raise', 'drop'" in command.err
