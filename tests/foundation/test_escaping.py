"""Commands that a shell reads back as the words from which they were made, and that a terminal only shows."""

from __future__ import annotations

import shlex
import subprocess

from hypothesis import given, settings
from hypothesis import strategies as st

from lit_loader.foundation.escaping import shell_command

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
    words = ["lit-loader", "a b", "it's", "é", ""]
    assert shell_command(words) == shlex.join(words)
