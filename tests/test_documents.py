"""The code of README.md and docs/ runs, and its commands, files and links exist."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from itertools import takewhile

import numpy as np
import pytest
import yaml
from hydra.utils import instantiate

from lit_loader.annotations.formats import read_annotations, readers
from lit_loader.app.commands import main
from lit_loader.app.composition import compose_config, validate
from lit_loader.datasets import FormatSource, ShapesSource, VocSource, draw_shapes
from lit_loader.inspection.kinds import KINDS, READER_KINDS
from tests.support.cached_configs import cached_configs  # noqa: F401 # a fixture
from tests.support.documents import ALL, PAGES, README, ROOT, blocks, commands
from tests.support.forked_scripts import ForkedScripts
from tests.support.made_sets import MAKERS, split_in_two
from tests.support.text_sets import write_image

# Modules of a user begin with a comment that names them, and are no scripts.
PYTHON = [code for code in blocks(ALL, "python") if not code.startswith("# my_")]
TRAIN = [[word for word in words if word not in ("--help", "-m")] for words in commands(ALL, "lit-loader train")]
# The overrides end at the first option.
TRAIN += [list(takewhile(lambda word: "--" not in word, words)) for words in commands(ALL, "lit-loader show --batches")]
SMALLER = {
    "draw_shapes()": "draw_shapes(num_images={'train': 8, 'val': 4, 'test': 4}, class_shares=(0.6, 0.3, 0.1))",
    "ShapesSource()": "ShapesSource(num_images={'train': 8}, class_shares=(0.6, 0.3, 0.1))",
    'weights="DEFAULT"': "weights=None",  # they would be downloaded
    "max_steps=100": "fast_dev_run=True, accelerator='cpu'",
}


@pytest.fixture(scope="module")
def scripts():
    """Forks of an interpreter with the packages that most examples import."""
    forked_scripts = ForkedScripts("lightning.pytorch", "lit_loader.callbacks", "lit_loader.recipes")
    yield forked_scripts
    forked_scripts.close()


@pytest.mark.parametrize(
    "code",
    PYTHON,
    ids=[
        "one import",
        "detector",
        "own format",
        "folds",
        "show a table",
        "rows",
        "check",
        "mixed",
        "mirrored points",
        "statistics",
        "balance by epoch",
        "shuffle quality",
        "uint8",
        "extra transforms",
        "merged tiles",
        "bad samples",
        "where the time goes",
        "object storage",
        "resuming",
        "schedules",
        "own mix",
        "heads of landmarks",
        "mixed batches",
        "mixed batches of a data set",
        "monitored training",
        "why training waits",
    ],
)
def test_python_examples_run(code, scripts, tmp_path):
    for long, short in SMALLER.items():
        code = code.replace(long, short)
    if "class BoxesReader" in code:
        # Use the reader, which the example only defines.
        write_image(tmp_path / "a.png")
        (tmp_path / "boxes.txt").write_text("a.png cat 1 2 9 8\n")
        code += "\nfrom lit_loader.annotations.formats import read_annotations, register_format\n"
        code += "register_format(BoxesReader)\n"
        code += 'print(read_annotations("boxes", ".", "boxes.txt").boxes.tolist()[0][3])\n'
    (tmp_path / "example.py").write_text(code)
    result = scripts.run(tmp_path / "example.py", cwd=tmp_path, env={"XDG_CACHE_HOME": str(tmp_path)})
    assert result.returncode == 0, result.stderr
    assert result.stdout


def test_the_sampler_of_ones_own_draws_crowded_images_more_often(tmp_path, monkeypatch):
    (code,) = (code for code in blocks(ALL, "python") if code.startswith("# my_samplers.py"))
    (tmp_path / "my_samplers.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    my_samplers = importlib.import_module("my_samplers")
    source = ShapesSource(num_images={"train": 30}, cache_dir=str(tmp_path), progress=False)
    (table,) = source.tables("train")
    sampler = my_samplers.CrowdedMoreOftenConfig(power=1.0).make_sampler(table)
    counts = 1 + np.diff(table.offsets)
    assert np.allclose(sampler.expected_visits(), len(counts) * counts / counts.sum())


def test_yaml_examples_are_configs():
    for text in blocks(ALL, "yaml"):
        assert yaml.safe_load(text).keys() & {"defaults", "_target_"}


def test_xml_example_is_in_the_unified_format(tmp_path):
    (xml,) = blocks(ALL, "xml")
    for folder in ("Annotations", "JPEGImages"):
        (tmp_path / folder).mkdir()
    (tmp_path / "Annotations" / "portrait.xml").write_text(xml)
    (tmp_path / "JPEGImages" / "portrait.jpg").touch()
    table = read_annotations("voc", tmp_path, use_cache=False, progress=False)
    assert table.keypoint_names == ("left eye", "right eye")
    assert table.flip_pairs == ((0, 1),)
    assert table.visibility.tolist() == [[2, 1]]
    assert table.attributes["expression"].names == ("calm",)
    assert len(table.report) == 0


def test_table_of_formats_is_complete():
    rows = re.findall(r"^\| (`[a-z_0-9`, ]+`) \|", PAGES["annotations"], re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"\w+", row)}
    assert set(readers()) <= named
    assert f"{len(readers())} formats" in README


def test_documented_checks_run(tmp_path, monkeypatch, capsys):
    MAKERS["voc"](tmp_path / "faces-xml", split_in_two(tmp_path))
    (tmp_path / "shapes-xml").symlink_to("faces-xml")
    monkeypatch.chdir(tmp_path)
    checks = commands(ALL, "lit-loader check")
    assert checks
    for words in checks:
        if ">" in words:  # of a shell
            words = words[: words.index(">")]
        assert main(["check", *words, "--cache-dir", str(tmp_path)]) in (0, 1), capsys.readouterr().err


def test_every_rule_of_a_check_is_documented():
    documented = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", PAGES["annotations"], re.MULTILINE)))
    assert KINDS.keys() - READER_KINDS.keys() <= set(documented)


def test_makefile_has_the_documented_targets():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test", "soak", "lint", "bench"} <= targets


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.stem
)
def test_every_file_and_link_exists(page):
    text = (ROOT / page).read_text()
    for name in re.findall(r"`((?:tests|lit_loader|conf|examples|benchmarks)/[\w./]*)`", text):
        assert (ROOT / name).exists(), name
    for module in re.findall(r"python -m (benchmarks\.\w+)", text):
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file(), module
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (ROOT / page).parent.joinpath(link).exists(), link


def test_readme_links_to_every_page():
    assert set(re.findall(r"\]\(docs/([\w-]+)\.md\)", README)) == set(PAGES)


def test_every_name_in_the_readme_of_the_engine_exists():
    package = ROOT / "lit_loader"
    text = (package / "engine" / "README.md").read_text()
    source = "\n".join(path.read_text() for path in package.rglob("*.py"))
    names = re.findall(r"`([\w./]+)`", text)
    assert len(names) > 80
    for name in names:
        if name.endswith(".py"):
            assert any((folder / name).is_file() for folder in (package, package / "engine", package / "memory"))
            continue
        for part in name.split("."):
            assert re.search(rf"\b{part}\b", source), name
    for title in re.findall(r"NOTE \[[\w ]+\]", text):
        assert f"{title}\n" in source, title


@pytest.mark.parametrize("words", TRAIN, ids=" ".join)
def test_training_commands_compose(words):
    # Hydra splits a sweep, the overrides of a run precede a checkpoint, and --config-dir names a folder of the user.
    is_sweep = any("," in word and "[" not in word for word in words)
    has_checkpoint = any(word.startswith("ckpt_path=") for word in words)
    if words and "--config-dir" not in words and not is_sweep and not has_checkpoint:
        composed(words)


def composed(overrides):
    cfg = compose_config(ROOT / "conf", "train", overrides)
    validate(cfg)
    return cfg


@pytest.fixture(scope="module")
def voc2012(tmp_path_factory):
    """A folder with the splits of VOC2012, which has no test.txt."""
    splits = {"train": 4, "val": 2, "test": 2}
    folder = tmp_path_factory.mktemp("voc") / "VOC2012"
    root = draw_shapes(folder, num_images=splits, class_shares=(0.5, 0.3, 0.2), progress=False)
    (root / "ImageSets/Main/test.txt").unlink()
    return root


SOURCES = re.findall(r"^\|[^|]*\| `((?:Voc|Format)Source\(.*?\))`", PAGES["annotations"], re.MULTILINE)


@pytest.mark.parametrize("code", SOURCES)
def test_sources_of_the_table_read_their_layouts(code, tmp_path):
    source = eval(code, {"VocSource": VocSource, "FormatSource": FormatSource})
    if source.root.endswith("mine"):
        return  # it differs from COCO only in its names
    root = tmp_path / "set"
    root.mkdir()
    MAKERS[source.format](root, split_in_two(tmp_path))
    source = replace(source, root=root, cache_dir=str(tmp_path / "cache"), progress=False)
    assert all(source.tables(stage)[0].num_images > 0 for stage in ("train", "val"))


def test_patterns_match_the_documents():
    assert len(SOURCES) == 5
    assert len(TRAIN) > 25


def test_documented_sources_of_voc2012_read_its_splits(voc2012, tmp_path):
    codes = re.findall(r"(VocSource\([^()]*VOC2012[^()]*\))", ALL)
    command_words = [words for words in TRAIN if any("VOC2012" in word for word in words)]
    assert codes
    assert command_words
    sources = [eval(code, {"VocSource": VocSource}) for code in codes]
    sources += [instantiate(composed(words).dataset, _convert_="all") for words in command_words]
    for source in sources:
        source = replace(source, root=str(voc2012), cache_dir=str(tmp_path), progress=False)
        source.prepare()
        assert [table.num_images for table in source.tables("train")] == [4]
