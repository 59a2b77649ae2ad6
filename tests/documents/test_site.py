"""The site: every public name is in the API reference, pages are in the navigation, links lead to headings."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import lit_loader
from lit_loader.app.commands import main
from tests.support.documents import DOCS, PAGES, ROOT

PACKAGE = ROOT / "lit_loader"
# Packages that only this package imports from; their names may change without notice.
INTERNAL = {
    "app.commands",
    "app.tuning",
    "foundation",
    "images.decoded_cache",
    "loader",  # its names are in the root
    "loader.device",
    "loader.resume",
    "memory",
    "storage",
}
LINKS_TO_PAGES = ("author", "copyright", "index", "next", "prev", "search")  # `rel` of links that load nothing
PUBLIC_MODULES = ("errors", "mixing", "schedules", "types")


def exports(path: Path) -> list[str]:
    """Return the literal `__all__` of a file, without importing it."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    return []


def public_names() -> set[str]:
    """Return every public name under its shortest import path."""
    names = {f"lit_loader.{name}" for name in lit_loader.__all__}
    packages = [path.parent.relative_to(PACKAGE).as_posix().replace("/", ".") for path in PACKAGE.rglob("__init__.py")]
    for module in [*packages, *PUBLIC_MODULES]:
        if module not in INTERNAL | {"."}:
            path = PACKAGE / module.replace(".", "/")
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            names |= {f"lit_loader.{module}.{name}" for name in exports(file) if name not in lit_loader.__all__}
    return names


def test_reference_has_every_public_name_once():
    text = "\n".join(text for page, text in PAGES.items() if page.startswith("api/"))
    listed = Counter(
        f"{module}.{name}"
        for module, names in re.findall(r"^```{names} (\S+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        for name in names.split()
    )
    assert max(listed.values()) == 1
    assert set(listed) == public_names()


def test_every_command_has_a_page(capsys):
    assert main(["--help"]) == 0
    commands = re.findall(r"^    (\w+) ", capsys.readouterr().out, re.MULTILINE)
    assert len(commands) > 10
    pages = "".join(text for page, text in PAGES.items() if page.startswith("command-line/"))
    assert Counter(re.findall(r"^```{command} (\w+)$", pages, re.MULTILINE)) == Counter(commands)


def toctree_entries(page: str) -> list[str]:
    """Return the pages that the toctrees of a page list."""
    entries = []
    for block in re.findall(r"^```{toctree}\n(.*?)^```$", PAGES[page], re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            name = line[line.index("<") + 1 : -1] if line.endswith(">") else line
            if name and not name.startswith(":"):
                entries.append((Path(page).parent / name).as_posix())
    return entries


def test_navigation_has_every_page_once():
    entries = Counter(entry for page in PAGES for entry in toctree_entries(page))
    entries.pop("tutorials/index")  # written by the build
    assert entries == Counter(page for page in PAGES if page != "index")


def anchors(text: str) -> set[str]:
    """Return the anchors of a Markdown page: its headings down to the third level, and its labels."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#{1,3} (.+)$", text, re.MULTILINE)
    slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings]
    return set(slugs) | set(re.findall(r"^\((\S+)\)=$", text, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES)
def test_links_to_headings_lead_to_one(page):
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", PAGES[page]):
        target = os.path.normpath(Path(page).parent / path.removesuffix(".md")) if path else page
        if target in PAGES and not target.startswith("changelog"):
            assert anchor in anchors(PAGES[target]), f"{path}#{anchor}"


class Page(HTMLParser):
    """Addresses in a built page: its links, the files that a browser loads with it, and the ids of its elements."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        is_link = tag in ("a", "area") or (tag == "link" and values.get("rel") in LINKS_TO_PAGES)
        if is_link and "href" in values:
            self.links.append(values["href"])
        elif tag == "link":
            self.loaded.append(values["href"])
        self.loaded += [values[name] for name in ("src", "data", "poster", "action") if tag != "a" and name in values]
        self.loaded += [word.split()[0] for word in values.get("srcset", "").split(",") if word.strip()]
        self.loaded += re.findall(r"url\(['\"]?([^)'\"]+)", values.get("style", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of a site that was built from a copy of the sources, with warnings as errors."""
    folder = tmp_path_factory.mktemp("site")
    ignored = shutil.ignore_patterns("_build", "tutorials")
    shutil.copytree(DOCS, folder / "docs", ignore=ignored)
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.glob("*.md"):  # pages include them
        shutil.copy(path, folder)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", "html"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache")}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder / "html"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_built_site_loads_nothing_from_elsewhere_and_its_links_lead_somewhere(site):
    paths = {path.relative_to(site).as_posix(): path for path in site.rglob("*.html")}
    # The theme has a template among its files.
    pages = {name: Page(path) for name, path in paths.items() if not name.startswith("_static/")}
    assert len(pages) > len(PAGES)
    for name, page in pages.items():
        for address in page.loaded:
            assert not re.match(r"(?!data:)(\w+:)?//", address), f"{name} loads {address}"
            if not address.startswith("data:"):
                path = os.path.normpath(site / name / ".." / unquote(urlsplit(address).path))
                assert os.path.exists(path), f"{name} loads {address}, which does not exist"
        for address in page.links:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = os.path.normpath(Path(name).parent / unquote(parts.path)) if parts.path else name
            assert (site / target).exists(), f"{name} links to {address}, which does not exist"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].ids, f"{name} links to {address}, which has no such id"
    for path in site.rglob("*.css"):
        for address in re.findall(r"(?:url\(|@import )['\"]?([^)'\"]+)", path.read_text()):
            assert not re.match(r"(?!data:)(\w+:)?//", address), f"{path} loads {address}"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_built_site_has_a_search_index_and_texts_for_language_models(site):
    assert "classbalancedsampl" in (site / "searchindex.js").read_text()
    assert "var Scorer = " in (site / "_static/language_data.js").read_text()  # docs/search_ranking.js
    listing = (site / "llms.txt").read_text()
    assert listing.startswith("# lit_loader")
    assert all(f"({page}.md)" in listing for page in PAGES)
    texts = (site / "llms-full.txt").read_text()
    assert "Exact resume in mid-epoch" in texts
    assert "max_worker_restarts" in texts
    num_links = 0
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", (site / f"{page}.md").read_text(), flags=re.DOTALL | re.MULTILINE)
        assert "]()" not in text, f"{page}.md has a link without a target"
        for address in re.findall(r"\]\(([^)\s#]+)", text):
            if "://" not in address:
                num_links += 1
                assert (site / page).parent.joinpath(address).exists(), f"{page}.md links to {address}"
    assert num_links > 1000
