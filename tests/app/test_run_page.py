"""``README.md`` of a run: figures, links, and commands that run when pasted."""

from __future__ import annotations

import csv
import html
import re
import shlex
from types import SimpleNamespace

import pytest
import torch
from markdown_it import MarkdownIt
from omegaconf import OmegaConf

from lit_loader.app.results import BestValidation
from lit_loader.app.run_folder import RunPage, git_commit
from lit_loader.app.secrets import masked_override
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
    """Split each command into words by the rules of bash."""
    lines = re.findall(r"^lit-loader .*$", page, re.MULTILINE)
    return [shlex.split(line)[1:] for line in lines]


def run_parts(folder, model):
    """Return as much of a run as its page needs, without data."""
    trainer = SimpleNamespace(
        is_global_zero=True, checkpoint_callbacks=[], checkpoint_callback=None, world_size=1, num_nodes=1,
        precision="32-true", strategy=SimpleNamespace(root_device="cpu"), current_epoch=0, max_epochs=1, global_step=0,
    )  # fmt: skip
    cfg = {"seed": 0, "dataset": {"root": "${oc.env:SECRET_OF_THE_ENVIRONMENT}"}, "paths": {"work_dir": str(folder)}}
    return SimpleNamespace(trainer=trainer, folder=folder, model=model, cfg=OmegaConf.create(cfg), datamodule=None)


def test_page_tells_what_was_trained(run):
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
    *_, original = commands_of(trained.page)
    assert original[1:] == [*SMALL, "logger=none"]


def test_page_of_a_failed_run_names_the_reason_and_secrets_are_left_out(run, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_ENVIRONMENT", "hidden-in-the-environment")
    words = ["+extras.remark=${oc.env:SECRET_OF_THE_ENVIRONMENT}", "+extras.wandb={api_key: hidden}"]
    words += ["+extras.url='https://me:hidden@host/x?token=hidden'", "+paths.secret=hidden"]
    words += ["+extras.storage.sas_key=sesame"]
    failed = run(*words, "optimized_metric=nope", "trainer.limit_train_batches=1", code=1)
    assert "State: failed: ConfigError: optimized\\_metric='nope' is not a metric of this run" in failed.page
    assert "hidden" not in failed.page
    *_, original = commands_of(failed.page)
    masked = [words[0], "+extras.wandb=***", "+extras.url='https://***@host/x?***'", "+paths.secret=***"]
    masked += ["+extras.storage.sas_key=***"]
    assert original[len(SMALL) + 2 : -2] == masked
    assert "Add to each command, with their values:" in failed.page
    assert "+paths.secret=***" in failed.page.replace("\\", "")
    # Credentials of a store are also masked in the files of Hydra.
    files = [path for path in failed.folder.rglob("*") if path.is_file()]
    assert failed.folder / ".hydra/config.yaml" in files
    assert [path for path in files if b"sesame" in path.read_bytes()] == []


@pytest.mark.parametrize("word", [
    "+extras.auth=H", "+extras.key.pwd=H", "+extras.api-key=H", "+extras.access_key=H", "+x.aws_secret_access_key=H",
    "+x.accessToken=H", "+x.tokens=[H]", "+x.secrets.a=H", "+x={a: [{password: H}]}", "+x.password=1234",
    "+x.WANDB_API_KEY=H", "+x.headers={Authorization: H}", "+x.db_password_file=H", "+x=ftp://H@host", "+x=s3://a?sig=H",
])  # fmt: skip
def test_secrets_of_overrides_are_masked(word):
    masked = masked_override(word)
    assert "***" in masked
    assert "H" not in masked.replace("WANDB_API_KEY", "").partition("=")[2]
    assert masked.partition("=")[0] == word.partition("=")[0]


@pytest.mark.parametrize("word", [
    "model.tokenizer=H", "+model.num_tokens=5", "+model.max_tokens=5", "+model.class_token=true", "sampler.keypoints=H",
    "+x.keys=[a]", "+x.key=a", "+x.author=H", "+x.authors=[H]", "~callbacks.pictures", "model@x=H",
    "dataset.root=s3://a/b", "+x.secret=null", "datamodule.train_transforms={size: 64, hflip: 0.5}",
])  # fmt: skip
def test_other_overrides_are_shown_as_they_are(word):
    assert masked_override(word) == word


def test_page_without_checkpoints_has_only_the_original_command(run):
    stopped = run("optimized_metric=nope", "test=false", "train=false", code=1)
    assert "The run has saved no checkpoint" in stopped.page
    assert commands_of(stopped.page) == [
        ["train", *SMALL, "logger=none", "optimized_metric=nope", "test=false", "train=false"]
    ]


def test_page_is_written_with_lazy_parameters_and_unresolved_values(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_ENVIRONMENT", "hidden")
    parts = run_parts(tmp_path, torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.Linear(2, 3)))
    RunPage(parts, BestValidation()).write("running", is_running=True)
    page = (tmp_path / "README.md").read_text()
    assert "| parameters | 9 |" in page
    assert "oc.env" in page
    assert "hidden" not in page
    assert page.count("ckpt_path=checkpoints/last.ckpt") == 1


def test_an_error_of_the_page_does_not_stop_the_run(tmp_path, caplog):
    parts = run_parts(tmp_path, torch.nn.Linear(2, 3))
    del parts.trainer.world_size
    RunPage(parts, BestValidation()).write("running")
    assert "README.md could not be written: AttributeError" in caplog.text
    assert not (tmp_path / "README.md").exists()


SMALL_REGRESSION = [
    *("experiment=shapes_regression", "dataset.num_images={train: 4, val: 2, test: 2}", "dataset.image_size=48"),
    *("dataset.class_shares=[0.4,0.3,0.3]", "dataset.finish_shares=[0.4,0.3,0.3]", "datamodule.batch_size=2"),
    *("model.model.channels=8", "trainer=cpu", "trainer.max_epochs=1", "trainer.limit_train_batches=2"),
    *("trainer.enable_progress_bar=false", "+trainer.enable_model_summary=false", "workers=inline", "logger=none"),
    *(f"~callbacks.{name}" for name in ("pictures", "curves", "rich_progress", "model_summary", "data_monitor")),
]


@pytest.mark.soak
def test_commands_of_the_page_run(tmp_path):
    """The images of `predict` lack the attributes that this run was trained on."""
    trained = run_app(tmp_path, "train", *SMALL_REGRESSION)
    assert trained.code == 0, trained.out + trained.err
    (file,) = tmp_path.glob("logs/train/runs/*/README.md")
    resume, evaluate, predict, _ = commands_of(file.read_text())
    assert [words[0] for words in (resume, evaluate, predict)] == ["train", "eval", "predict"]
    assert not any(str(tmp_path) in word for word in (*resume, *evaluate, *predict))
    tested = run_app(tmp_path, *evaluate)
    assert tested.code == 0, tested.err
    scores = [re.findall(r"^│ NME.*$", result.out, re.MULTILINE) for result in (trained, tested)]
    assert scores[0] == scores[1] != []
    write_image(tmp_path / "path/to/images/a.png", size=(48, 48))
    predicted = run_app(tmp_path, *predict, "predict.num_pictures=0")
    assert predicted.code == 0, predicted.err
    assert "predictions of checkpoint" in predicted.out
    (predictions,) = tmp_path.glob("logs/predict/runs/*/predictions/predictions.*")
    assert "finish" in predictions.read_text()
    resumed = run_app(tmp_path, *resume, "trainer.max_epochs=2", "resume_in_place=true", "test=false")
    assert resumed.code == 0, resumed.err
    page = file.read_text()
    assert "| resumed from | " in page
    assert "| epochs, steps | 2 of 2, 4 |" in page


@pytest.mark.parametrize(
    "text", ["a|b", "<b>x</b>", "[x](y)", "`c`", "*s*", "![i](http://x)", "www.x.org", "a\nb", "\\|"]
)
def test_names_are_shown_and_not_interpreted(text):
    escaped = escape_markdown(text)
    # Some readers of Markdown make links of plain addresses.
    assert "www." not in escaped
    assert re.search(r"(?<!\\)://", escaped) is None
    rows = f"| a | b |\n|---|---|\n| {escaped} | c |\n"
    rendered = MarkdownIt("commonmark", {"linkify": False}).enable("table").render(rows)
    assert rendered.count("<td>") == 2
    assert f"<td>{html.escape(text, quote=False)}</td>".replace("\n", "\\n") in rendered


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
