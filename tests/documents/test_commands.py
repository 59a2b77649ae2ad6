"""The commands of README.md and docs/ exist, and run on small data or compose their config."""

from __future__ import annotations

import re
import shlex
import tomllib
from itertools import takewhile

import pytest

from lit_loader.app.commands import main
from lit_loader.app.composition import compose_config
from tests.support.cached_configs import cached_configs  # noqa: F401 # a fixture
from tests.support.documented_sets import DOCUMENTED_PATHS, make_documented_sets
from tests.support.documents import ALL, ROOT, commands, shell_lines


def unique(lists):
    """Return the lists without repetitions: several pages show the same command."""
    return list(map(list, dict.fromkeys(map(tuple, lists))))


APP = ("train", "eval", "predict")
ON_CHECKPOINTS = (["lit-loader", "eval"], ["lit-loader", "predict"])
RUNS = {  # that a command on a checkpoint may belong to, by a key that other runs lack
    "dataset.root": ["experiment=shapes", "dataset=voc"],
    "model.test_time_flip": ["experiment=shapes_landmarks"],
}
PROGRAMS = {"lit-loader", "torchrun", "srun", "sbatch", "if", "export", "cd", "git", "nox"}
TRAIN = [[word for word in words if word not in ("--help", "-m")] for words in commands(ALL, "lit-loader train")]
# The overrides end at the first option.
TRAIN += [list(takewhile(lambda word: "--" not in word, words)) for words in commands(ALL, "lit-loader show --batches")]
TRAIN = unique(TRAIN)
CHECKPOINT = unique(words[1:] for words in shell_lines(ALL) if words[:2] in ON_CHECKPOINTS)
DATA = unique(
    words[1:]
    for words in shell_lines(ALL)
    if words[0] == "lit-loader" and words[1] not in (*APP, "tune", "profile") and "--batches" not in words
)
TUTORIALS = "\n".join(path.read_text().replace("\n# ", "\n") for path in (ROOT / "examples/tutorials").glob("*.py"))
SENTENCES = re.sub(r"^ *```.*?^ *```$", "", f"{ALL}\n{TUTORIALS}", flags=re.DOTALL | re.MULTILINE)
INLINE = unique(map(shlex.split, re.findall(r"`lit-loader (\w+ [^`]+)`", SENTENCES)))


def job(words):
    """Return overrides that compose the single run of a command, or the first run of a sweep such as ``seed=0,1``."""
    # Flags are options of the app, and Ray's launcher is a package of its own.
    overrides = [word for word in words if not word.startswith("--") and "launcher=ray" not in word.replace(".", "=")]
    overrides = [re.sub(r"=([\w.]+),[\w.,]+$", r"=\1", word) for word in overrides]
    if any(word.startswith("ckpt_path=") for word in words):
        # The overrides of the run that wrote the checkpoint come first.
        keys = {word.partition("=")[0] for word in words}
        run = next((run for key, run in RUNS.items() if key in keys), ["experiment=shapes"])
        overrides = [*run, *overrides]
    return overrides


@pytest.mark.parametrize("words", TRAIN, ids=" ".join)
def test_training_commands_compose(words):
    if "--config-dir" not in words:  # a folder of the user, whose files the tests of its page write
        compose_config(ROOT / "conf", "train", job(words))  # validates the config


@pytest.mark.parametrize("words", CHECKPOINT, ids=" ".join)
def test_commands_on_checkpoints_compose(words):
    compose_config(ROOT / "conf", words[0], job(words[1:]))


@pytest.mark.parametrize("words", DATA, ids=" ".join)
@pytest.mark.filterwarnings("ignore:.* in fewer images than there are parts")  # the sets are small
@pytest.mark.filterwarnings("ignore:.* images have names that differ only in a trailing number")  # drawn images
def test_data_commands_run(words, tmp_path, monkeypatch, capsys):
    make_documented_sets(" ".join(words), tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    needs_files = any("s3://" in word or word == "--worst" for word in words)
    if needs_files or not any(word in DOCUMENTED_PATHS for word in words):
        words = [*words, "--help"]  # their data is not made here; argparse checks the options before
    code = main(words)
    errors = capsys.readouterr().err
    assert code in (0, 1), errors
    assert code == 0 or words[0] == "check", errors  # which ends with 1 after findings
    assert "lit-loader: error" not in errors


@pytest.mark.parametrize("words", INLINE, ids=" ".join)
def test_commands_in_sentences_have_existing_options_and_keys(words, capsys):
    command, *arguments = words
    if command in APP:
        # `...` replaces other words; the page of the experiment `faces` writes its file.
        overrides = [word for word in arguments if "=" in word and word != "experiment=faces"]
        compose_config(ROOT / "conf", command, job([*overrides, "ckpt_path=best.ckpt"]))
    else:
        main([command, "--help"])
        options = {word for word in arguments if word.startswith("--")}
        assert options <= set(re.findall(r"^ +(?:-\w, )?(--[\w-]+)", capsys.readouterr().out, re.MULTILINE))


def test_other_commands_exist():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert {"demo", "test", "soak", "lint", "bench", "docs"} <= targets
    for words in shell_lines(ALL):
        program, *arguments = words
        if program == "make":
            assert set(arguments) <= targets, words
        elif program == "pip":
            requested = re.findall(r"\[([\w,]+)\]", " ".join(arguments))
            assert set(",".join(requested).split(",")) <= extras | {""}, words
        elif program == "python" and arguments[0] == "-m":
            assert (ROOT / arguments[1].replace(".", "/")).with_suffix(".py").is_file() or (
                ROOT / arguments[1] / "__main__.py"
            ).is_file(), words
        elif program == "python":
            assert (ROOT / arguments[0]).is_file(), words
        else:
            assert program in PROGRAMS, words


def test_patterns_match_the_documents():
    assert len(TRAIN) > 25
    assert len(DATA) > 15
