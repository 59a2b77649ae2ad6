"""Commands that a shell reads back as the words from which they were made, and that a terminal only shows."""

from __future__ import annotations

import shlex
import subprocess

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_loader.foundation.escaping import has_hydra_keys, hydra_value, shell_command

# A word of a command cannot contain NUL; a file name has its invalid bytes as these surrogates.
CHARACTERS = st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)) | st.sampled_from(
    "\x1b\x07\n'\\\udcff"
)


@given(st.lists(st.text(CHARACTERS, max_size=8), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_a_shell_reads_back_the_words(words):
    line = shell_command(words)
    assert line.isprintable()
    shell = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], stdout=subprocess.PIPE, check=True)
    assert shell.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1] == words


def test_ordinary_words_have_ordinary_quotes():
    words = ["lit-loader", "a b", "é", ""]
    assert shell_command(words) == shlex.join(words)
    assert shell_command(["k='1.txt'", "it's $5"]) == """"k='1.txt'" 'it'"'"'s $5'"""


def parsed(text):
    (override,) = OverridesParser.create().parse_overrides([f"k={text}"])
    return override.value()


@pytest.mark.parametrize("value", [".", "..", "./", "../a", "a/b.txt"])
def test_plain_paths_need_no_quotes(value):
    assert hydra_value(value) == value
    assert parsed(hydra_value(value)) == value
    assert parsed(hydra_value({"a": [value]})) == {"a": [value]}


@given(st.text("ab1-e_./\\' ,=[]{}()$:*\t\"né0", max_size=7))
@settings(deadline=None)
def test_hydra_parses_mappings_unchanged_unless_a_key_has_no_syntax(key):
    value = {"a": {key: "x"}}
    if has_hydra_keys(value):
        ((read_key, item),) = parsed(hydra_value(value))["a"].items()
        assert (str(read_key), item) == (key, "x")
    else:
        assert yaml.safe_load(hydra_value(value)) == value


@pytest.mark.parametrize("key", ["car (old)", "a, b", "a:b", "0", "007", "*", "a=b", "[x]"])
def test_ordinary_class_names_can_be_written_as_keys_of_hydra(key):
    assert has_hydra_keys({key: None})
    assert list(map(str, parsed(hydra_value({key: None})))) == [key]


@pytest.mark.parametrize("key", ["driver's seat", "null", "True", "1.50", "é", "", '"'])
def test_keys_without_syntax_in_hydra_are_known(key):
    assert not has_hydra_keys({"a": {key: 1}})
