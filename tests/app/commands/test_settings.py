"""Parsing of words into splits, options and shares."""

from __future__ import annotations

import pytest

from lit_loader.app.commands.settings import (
    UsageError,
    as_option,
    parse_actions,
    parse_options,
    parse_shares,
    parse_splits,
    parse_value,
)


def test_policies_are_written_as_options_with_their_only_action():
    assert as_option("policy.unknown_class", "drop") == "--policy unknown_class=drop"
    assert as_option("policy.missing_image", ...) == "--policy missing_image=ACTION"


def test_name_has_its_own_split_or_the_default():
    assert parse_splits(["train=a.txt", "val=b=c.txt"], default="train") == {"train": "a.txt", "val": "b=c.txt"}
    assert parse_splits(["lists/val.txt", "any.txt"], default="test") == {"val": "lists/val.txt", "test": "any.txt"}
    assert parse_splits(["a/x=y.txt"], default="train") == {"train": "a/x=y.txt"}
    assert parse_splits(["a.txt", "b=c.txt"], default=None) == {"a.txt": "a.txt", "b": "c.txt"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a.txt", "b.txt"], "'a.txt' and 'b.txt' would both be split 'train'; give SPLIT=NAME"),
        (["train="], "has no name after '='"),
        (["val=a", "val=b"], "would both be split 'val'"),
    ],
)
def test_ambiguous_splits_are_refused(words, message):
    with pytest.raises(UsageError, match=message):
        parse_splits(words, default="train")
    with pytest.raises(UsageError, match=r"'\.\./up' must be letters"):
        parse_splits(["a.txt"], default="../up")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("true", True),
        ("null", None),
        ("path points class", "path points class"),
        ("[path, points]", ["path", "points"]),
        ("{names: [a, b], flip_pairs: [[a, b]]}", {"names": ["a", "b"], "flip_pairs": [["a", "b"]]}),
        ('"\\t"', "\t"),
        ("", ""),
        (",", ","),
        (":", ":"),
        (";", ";"),
        ("#", "#"),
        ("|", "|"),
        ("a: b", "a: b"),
        ("- a", "- a"),
        ("2024-01-01", "2024-01-01"),
        ("!!python/name:os.system", "!!python/name:os.system"),
        ("[1, 2", "[1, 2"),
    ],
)
def test_value_is_yaml_or_text(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


def test_option_is_for_all_splits_or_for_one():
    def takes(name, value):
        return name == "schema" or isinstance(value, str)

    words = ["image_dir=a", "schema=5", "val:image_dir=2007"]
    assert parse_options(words, ["train", "val"], takes=takes) == {
        "train": {"image_dir": "a", "schema": 5},
        "val": {"image_dir": "2007", "schema": 5},
    }
    with pytest.raises(UsageError, match="is for the split 'test'; the splits are train, val"):
        parse_options(["test:a=1"], ["train", "val"], takes=takes)
    for word in ("columns", "=3"):
        with pytest.raises(UsageError, match="must be KEY=VALUE"):
            parse_options([word], ["train"], takes=takes)
    assert parse_actions(["missing_image=drop", "swapped=no"]) == {"missing_image": "drop", "swapped": "no"}


def test_train_keeps_the_share_that_is_not_held_out():
    splits = {"train": "a.txt"}
    assert parse_shares([], splits) == {}
    assert parse_shares(["val=0.25", "test=0.25"], splits) == {"train": 0.5, "val": 0.25, "test": 0.25}


@pytest.mark.parametrize(
    ("words", "splits", "message"),
    [
        (["val=0.1"], {"val": "v.txt"}, "the split 'val' exists already"),
        (["val=0.1", "val=0.2"], {"train": "t.txt"}, "the split 'val' exists already"),
        (["val=0.1"], {"test": "t.txt"}, "takes images of the split train; the splits are test"),
        (["val=x"], {"train": "t.txt"}, "'x' is not a number; give e.g. val=0.1"),
        (["val=0"], {"train": "t.txt"}, "each share must be above 0"),
        (["val=nan"], {"train": "t.txt"}, "each share must be above 0"),
        (["val=0.5", "test=0.5"], {"train": "t.txt"}, "and their sum below 1"),
        (["a/b=0.5"], {"train": "t.txt"}, "split 'a/b' must be letters"),
    ],
)
def test_impossible_shares_are_refused(words, splits, message):
    with pytest.raises(UsageError, match=message):
        parse_shares(words, splits)
