"""The program: fast help whose examples run, exit codes, and output to a pipe."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
from functools import partial
from pathlib import Path

import pytest

import lit_loader
from tests.support.face_lists import READ

PROGRAM = Path(sysconfig.get_path("scripts"), "lit-loader")
run_process = partial(subprocess.run, capture_output=True, text=True, check=False)


def examples(text):
    text = text[text.index("Examples:") :].replace("\\\n", " ")
    return [shlex.split(line) for line in re.findall(r"^  lit-loader (.*)$", text, re.MULTILINE)]


@pytest.mark.parametrize("name", ["convert", "index"])
def test_examples_of_the_help_run(command, faces, name):
    if name == "index":
        command(*examples(command("convert", "--help"))[0])  # makes faces-xml
    commands = examples(command(name, "--help"))
    assert len(commands) >= 2
    for words in commands:
        command(*words)


@pytest.mark.parametrize("name", ["convert", "index"])
def test_help_lists_formats_options_and_policies(command, faces, name):
    text = command(name, "--help")
    assert "\n  out_of_image=keep (or clip, drop, raise)\n" in text
    text = " ".join(text.split())
    assert "keypoints_txt: text, a line an object" in text
    assert "columns=(required) separator=null" in text
    assert ("formats to write" in text) is (name == "convert")
    assert "exit codes: 0 done" in text


@pytest.mark.parametrize("words", [[], ["convrt"], ["index"], ["convert", "voc", "x", "y", "--to", "coco"]])
def test_incomplete_command_exits_with_2(command, words):
    command(*words, code=2)
    assert "usage: lit-loader" in command.err


def test_version_is_printed(command):
    assert command("--version") == f"lit-loader {lit_loader.__version__}\n"


def test_program_is_installed_and_annotations_need_no_torch(tmp_path, faces):
    words = [PROGRAM, "index", "keypoints_txt", "faces", "nope.txt", "--option", "columns=path class"]
    result = run_process(words, cwd=tmp_path)
    assert result.returncode == 1
    assert "nope.txt" in result.stderr
    assert result.stdout == ""
    code = (
        "import sys; from lit_loader.app.commands import main; main(['--help']); main(['convert', '--help']);"
        "from lit_loader.app.commands import convert, index;"
        "assert not {'torch', 'lightning', 'hydra'} & set(sys.modules)"
    )
    result = run_process([sys.executable, "-c", code])
    assert result.returncode == 0, result.stderr
    assert "convert" in result.stdout


def test_reader_that_leaves_early_ends_the_command_quietly(tmp_path, faces):
    words = shlex.join([str(PROGRAM), "index", "keypoints_txt", "faces", "train.txt", "--json", *READ])
    result = run_process(["bash", "-c", f"set -o pipefail; ({words}; echo code $? >&2) | true"], cwd=tmp_path)
    assert "Traceback" not in result.stderr
    assert "Exception ignored" not in result.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_ends_a_conversion_without_a_folder_or_traceback(command, faces, tmp_path, monkeypatch, number, code):
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("lit_loader.app.commands.output_folder.os.link", lambda *_, **__: os.kill(os.getpid(), number))
    # The background job of a shell ignores SIGINT.
    sigint_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    words = ["convert", "keypoints_txt", "faces", "train.txt", "--to", "voc", "--out", "new", *READ]
    try:
        command(*words, code=code)
    finally:
        signal.signal(signal.SIGINT, sigint_handler)
    assert command.err == "lit-loader: error: stopped; unfinished output was removed\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "faces"]
    assert signal.getsignal(signal.SIGTERM) == handler


@pytest.mark.filterwarnings("default")
def test_warning_is_one_line(command, faces):
    (faces.parent / "file").touch()
    command("index", "keypoints_txt", "faces", "train.txt", *READ, "--cache-dir", "file")
    assert command.err.startswith("lit-loader: warning: the cache ")
    assert command.err.count("\n") == 1


@pytest.mark.parametrize("words", [["index"], ["convert", "--to", "voc", "--out", "new"]])
def test_wrong_policy_lists_the_actions(command, faces, words):
    command(*words, "keypoints_txt", "faces", "train.txt", "--policy", "malformed=keep", code=2)
    assert "malformed='keep' must be one of 'raise', 'drop'" in command.err
