"""Pages: escaped texts, no requests, and pictures that a browser shows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from urllib.parse import urlsplit

import pytest
import torch
from PIL import Image

from lit_loader.inspection import Page, encode_picture

MARKUP = '"><img src=http://inert.invalid/a><script>document.title="run"</script>\u202e\x1b[31m\udcff&amp;'
COLOUR = (30, 90, 200)


class Tags(HTMLParser):
    """Collector of the tags and attributes of a document."""

    def __init__(self, text):
        super().__init__()
        self.tags = set()
        self.attributes = set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes.update((name, value) for name, value in attributes if name in ("src", "href", "srcset"))


def hostile_page():
    page = Page(MARKUP)
    picture = torch.tensor(COLOUR, dtype=torch.uint8)[:, None, None].expand(3, 200, 300)
    page.add_pictures([(encode_picture(picture), MARKUP)])
    page.add_heading(MARKUP)
    page.add_heading(MARKUP, level=3)
    page.add_text(MARKUP)
    page.add_table([MARKUP, "count"], [[MARKUP, 3]])
    return page


def test_texts_are_escaped_wherever_they_are():
    html = hostile_page().html()
    html.encode()
    tags = Tags(html)
    assert "script" not in tags.tags
    assert {name for name, _ in tags.attributes} == {"src"}
    assert all(value.startswith("data:image/jpeg;base64,") for _, value in tags.attributes)
    assert html.count("&lt;script&gt;") == 8
    assert not re.search("[\u202e\x1b]", html)
    assert html.count("\\u202e\\x1b[31m\\udcff&amp;amp;") == 8


def test_a_policy_forbids_scripts_and_requests():
    policy = re.search('Content-Security-Policy" content="([^"]*)"', Page("a").html())[1]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["img-src"] == "data:"
    assert "script-src" not in rules


def test_numbers_and_their_headings_are_aligned_to_the_right():
    page = Page("a")
    page.add_table(["class", "count", "share"], [["cat", 3, 0.5]])
    html = page.html()
    assert '<th>class</th><th class="number">count</th><th class="number">share</th>' in html
    assert '<td>cat</td><td class="number">3</td><td class="number">0.5</td>' in html


def test_a_table_without_rows_has_its_headings():
    page = Page("a")
    page.add_table(["class", "count"], [])
    assert "<th>class</th><th>count</th>" in page.html()


def test_a_browser_shows_the_pictures_runs_nothing_and_requests_nothing(tmp_path):
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not on the PATH")
    hostile_page().save(tmp_path / "page.html")
    page_url = (tmp_path / "page.html").as_uri()
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=800,1200"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={tmp_path / 'shot.png'}"]
    command += [f"--log-net-log={tmp_path / 'net.json'}", "--dump-dom", "--force-device-scale-factor=1", page_url]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    # No script has changed the title.
    assert dom.count("<title>&quot;") + dom.count('<title>"') == 1
    assert "script" not in Tags(dom).tags
    with Image.open(tmp_path / "shot.png") as shot:
        colours = shot.convert("RGB").getcolors(2**20)
    num_pixels = sum(n for n, c in colours if max(abs(a - b) for a, b in zip(c, COLOUR, strict=True)) < 8)
    assert num_pixels == pytest.approx(200 * 300, rel=0.02)
    # The browser itself asks for updates; the page would ask for the host of its markup.
    urls = set(re.findall(r'"url":("[^"]*")', (tmp_path / "net.json").read_text()))
    assert "inert.invalid" not in {urlsplit(json.loads(url)).hostname for url in urls}
