"""``README.md`` of a run: its figures and links, and its commands, which run as they are typed."""

from __future__ import annotations

import csv
import re
import shlex
from types import SimpleNamespace

import pytest
from markdown_it import MarkdownIt

from lit_loader.app.run_folder import git_commit
from lit_loader.foundation.escaping import escape_markdown
from tests.support.small_app import SMALL, run_app
from tests.support.text_sets import write_image


@pytest.fixture
def run(tmp_path):
    """Run the app in a folder; return its result, the folder of the run and its page."""

    def train(*words, code=0):
        result = run_app(tmp_path, "train", *SMALL, "logger=none", *words)
        assert result.code == code, result.out + result.err
        folder = max((tmp_path / "logs/train/runs").iterdir())
        return SimpleNamespace(folder=folder, page=(folder / "README.md").read_text(), result=result)

    return train


def commands_of(page):
    """Return the words of each command, as bash reads them."""
    lines = re.findall(r"^lit-loader .*$", page, re.MULTILINE)
    return [shlex.split(line)[1:] for line in lines]


def test_page_tells_what_was_trained_and_its_commands_run(run, tmp_path):
    trained = run()
    for part in ("State: finished in", "| shapes |", "DetectionTask with FCOS", "16 samples", "| torch |", "| test |"):
        assert part in trained.page
    assert "best validation (epoch 0, step 4)" in trained.page.replace("\\", "")
    assert "| commit |" not in trained.page
    # Every link leads to a file of the run.
    links = re.findall(r"\]\(([^)]+)\)", trained.page)
    assert {"results.json", "versions.json", "class_mix.csv", "checkpoints/last.ckpt", "checkpoints/best.ckpt"} <= set(
        links
    )
    assert all((trained.folder / link).exists() for link in links)
    with (trained.folder / "class_mix.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == ["disc", "square", "star"]
    assert sum(float(row["share in batches"]) for row in rows) == pytest.approx(1, abs=1e-3)
    resume, evaluate, predict, original = commands_of(trained.page)
    assert [words[0] for words in (resume, evaluate, predict, original)] == ["train", "eval", "predict", "train"]
    assert original[1:] == [*SMALL, "logger=none"]
    assert not any(str(tmp_path) in word for word in (*resume, *evaluate, *predict))
    tested = run_app(tmp_path, *evaluate)
    assert tested.code == 0, tested.err
    assert re.findall(r"^│ mAP.*$", tested.out, re.MULTILINE) == re.findall(
        r"^│ mAP.*$", trained.result.out, re.MULTILINE
    )
    write_image(tmp_path / "path/to/images/a.png", size=(48, 48))
    predicted = run_app(tmp_path, *predict)
    assert predicted.code == 0, predicted.err
    assert "predictions of checkpoint" in predicted.out
    resumed = run_app(tmp_path, *resume, "trainer.max_epochs=2", "resume_in_place=true", "test=false")
    assert resumed.code == 0, resumed.err
    page = (trained.folder / "README.md").read_text()
    assert "| resumed from | " in page
    assert "| epochs, steps | 2 of 2, 8 |" in page


def test_page_of_a_failed_run_names_the_reason_and_secrets_are_left_out(run, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_ENVIRONMENT", "hidden-in-the-environment")
    secrets = ["+extras.remark=${oc.env:SECRET_OF_THE_ENVIRONMENT}", "+extras.api_key=hidden-in-a-word"]
    failed = run(*secrets, "optimized_metric=nope", "trainer.limit_train_batches=1", code=1)
    assert "State: failed: ConfigError: optimized\\_metric='nope' is not a metric of this run" in failed.page
    assert "hidden" not in failed.page
    assert "+extras.api_key=***" in failed.page
    assert "'+extras.remark=${oc.env:SECRET_OF_THE_ENVIRONMENT}'" in failed.page


@pytest.mark.parametrize(
    "text", ["a|b", "<b>x</b>", "[x](y)", "`c`", "*s*", "![i](http://x)", "www.x.org", "a\nb", "\\|"]
)
def test_names_are_shown_and_not_interpreted(text):
    rows = f"| a | b |\n|---|---|\n| {escape_markdown(text)} | c |\n"
    html = MarkdownIt("commonmark", {"linkify": False}).enable("table").render(rows)
    assert html.count("<td>") == 2
    assert not re.search(r"<(b|a|em|img|code)\b", html)


def test_commit_is_read_from_branches_packed_branches_and_further_work_trees(tmp_path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    git = tmp_path / "project/.git"
    (git / "refs/heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    inner = tmp_path / "project/a/b"
    inner.mkdir(parents=True)
    (git / "packed-refs").write_text(f"# pack-refs\n{commit} refs/heads/main\n")
    assert git_commit(inner) == commit
    (git / "refs/heads/main").write_text(f"{commit[::-1]}\n")
    assert git_commit(inner) == commit[::-1]
    (git / "worktrees/other").mkdir(parents=True)
    (git / "worktrees/other/HEAD").write_text(f"{commit}\n")
    (git / "worktrees/other/commondir").write_text("../..\n")
    other = tmp_path / "other"
    other.mkdir()
    (other / ".git").write_text(f"gitdir: {git}/worktrees/other\n")
    assert git_commit(other) == commit
    (git / "HEAD").write_text("ref: refs/../../../secret\n")
    assert git_commit(inner) is None
