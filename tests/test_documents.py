"""The code of README.md and docs/ runs, and its commands, files and links exist."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import yaml
from hydra.utils import instantiate

from lit_loader.annotations.formats import read_annotations, readers
from lit_loader.app.composition import compose_config, validate
from lit_loader.datasets import FormatSource, VocSource, draw_shapes
from tests.support.documents import ALL, PAGES, README, ROOT, blocks, commands
from tests.support.forked_scripts import ForkedScripts
from tests.support.made_sets import MAKERS, split_in_two
from tests.support.text_sets import write_image

# a user's own modules, which begin with a comment of their name, are no scripts
PYTHON = [code for code in blocks(ALL, "python") if not code.startswith("# my_")]
TRAIN = [[word for word in given if word not in ("--help", "-m")] for given in commands(ALL, "lit-loader train")]
SMALLER = {
    "draw_shapes()": "draw_shapes(num_images={'train': 8, 'val': 4, 'test': 4}, class_shares=(0.6, 0.3, 0.1))",
    "ShapesSource()": "ShapesSource(num_images={'train': 8}, class_shares=(0.6, 0.3, 0.1))",
    'weights="DEFAULT"': "weights=None",  # they would be downloaded
    "max_steps=100": "fast_dev_run=True, accelerator='cpu'",
}


@pytest.fixture(scope="module")
def scripts():
    """Forks with third-party packages imported, and without lit_loader."""
    found = ForkedScripts("lightning.pytorch", "torchmetrics", "torchvision.transforms.v2")
    yield found
    found.close()


@pytest.mark.parametrize(
    "code", PYTHON, ids=["one import", "detector", "own format", "uint8", "bad samples", "resuming"]
)
def test_the_python_examples_run(code, scripts, tmp_path):
    for long, short in SMALLER.items():
        code = code.replace(long, short)
    if "class BoxesReader" in code:  # what it is for
        write_image(tmp_path / "a.png")
        (tmp_path / "boxes.txt").write_text("a.png cat 1 2 9 8\n")
        code += "\nfrom lit_loader.annotations.formats import read_annotations, register_format\n"
        code += "register_format(BoxesReader)\n"
        code += 'print(read_annotations("boxes", ".", "boxes.txt").boxes.tolist()[0][3])\n'
    (tmp_path / "example.py").write_text(code)
    done = scripts.run(tmp_path / "example.py", cwd=tmp_path, env={"XDG_CACHE_HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_yaml_is_yaml():
    for text in blocks(ALL, "yaml"):
        assert yaml.safe_load(text).keys() & {"defaults", "_target_"}


def test_the_xml_is_the_unified_format(tmp_path):
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


def test_every_format_is_in_the_table():
    rows = re.findall(r"^\| (`[a-z_0-9`, ]+`) \|", PAGES["annotations"], re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"\w+", row)}
    assert set(readers()) <= named
    assert f"{len(readers())} formats" in README


def test_make_has_every_target_that_is_named():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake (demo|test|soak|lint|bench)\b", ALL)) <= targets
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


def test_the_readme_links_to_every_page():
    assert set(re.findall(r"\]\(docs/(\w+)\.md\)", README)) == set(PAGES)


def test_the_life_of_a_batch_names_what_there_is():
    """Every file, class, function and NOTE that ``lit_loader/engine/README.md`` names is in the package."""
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


def test_the_documents_show_many_commands():
    assert len(TRAIN) > 25


@pytest.mark.parametrize("given", TRAIN, ids=" ".join)
def test_the_commands_compose(given):
    sweep = any("," in word and "[" not in word for word in given)
    of_run = any(word.startswith("ckpt_path=") for word in given)  # whose words come first
    if given and "--config-dir" not in given and not sweep and not of_run:  # a user's folder; Hydra splits a sweep
        composed(given)


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
def test_the_sources_of_the_table_read_their_layouts(code, tmp_path):
    source = eval(code, {"VocSource": VocSource, "FormatSource": FormatSource})
    if source.root.endswith("mine"):  # as COCO's, with other names
        return
    root = tmp_path / "set"
    root.mkdir()
    MAKERS[source.format](root, split_in_two(tmp_path))
    source = replace(source, root=root, cache_dir=str(tmp_path / "cache"), progress=False)
    assert all(source.tables(stage)[0].num_images > 0 for stage in ("train", "val"))


def test_the_table_has_a_source_for_each_common_layout():
    assert len(SOURCES) == 5


def test_what_is_said_of_voc2012_fits_its_splits(voc2012, tmp_path):
    inline = re.findall(r"(VocSource\([^()]*VOC2012[^()]*\))", ALL)
    from_commands = [given for given in TRAIN if any("VOC2012" in word for word in given)]
    assert inline
    assert from_commands
    sources = [eval(code, {"VocSource": VocSource}) for code in inline]
    sources += [instantiate(composed(given).dataset, _convert_="all") for given in from_commands]
    for source in sources:
        source = replace(source, root=str(voc2012), cache_dir=str(tmp_path), progress=False)
        source.prepare()
        assert [table.num_images for table in source.tables("train")] == [4]
