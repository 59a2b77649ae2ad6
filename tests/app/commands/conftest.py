"""The command in this process, in a folder of its own with lists of faces."""

from __future__ import annotations

import pytest

from lit_loader.app.commands import main
from tests.support.face_lists import write_faces
from tests.support.voc_set import VocSet


class Command:
    """Run ``lit-loader`` and record its output."""

    def __init__(self, capsys) -> None:
        self.capsys = capsys
        self.out = ""
        self.err = ""

    def __call__(self, *words, code=0):
        exit_code = main([str(word) for word in words])
        self.out, self.err = self.capsys.readouterr()
        assert exit_code == code, self.err
        assert "Traceback" not in self.err
        return self.out


@pytest.fixture
def command(capsys):
    return Command(capsys)


@pytest.fixture
def faces(tmp_path, monkeypatch):
    """A folder with lists and images, which is below the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "faces"
    write_faces(root, "train.txt", 20)
    write_faces(root, "val.txt", 6, start=20)
    write_faces(root, "all.txt", 30)
    return root


@pytest.fixture
def voc(tmp_path):
    return VocSet(tmp_path / "voc")
