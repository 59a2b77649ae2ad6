"""Keypoint schemas: the known ones mirror real faces, and invalid ones are refused."""

from __future__ import annotations

import itertools
import json
import pickle
import random
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from defusedxml import ElementTree

from lit_loader.annotations.keypoints import (
    KEYPOINT_SCHEMAS,
    KeypointSchema,
    common_schema,
    keypoint_schema,
    names_without_mirror,
)
from lit_loader.datamodules.table_module import warn_of_sides

REAL_FACES = {"face_68": "mmpose_samples/300w/test_300w.json", "face_98": "mmpose_samples/wflw/test_wflw.json"}
DLIB_FACES = "dlib_faces/training_with_face_landmarks.xml"


def real_faces(folder, name):
    """Return the points of real faces, ``(K, 2)`` each; dlib's are numbered as in face_68."""
    if name == "dlib":
        boxes = ElementTree.parse(folder / DLIB_FACES).getroot().iter("box")
        parts = [sorted(box.iter("part"), key=lambda part: part.get("name")) for box in boxes]
        return [np.array([[float(part.get("x")), float(part.get("y"))] for part in face]) for face in parts]
    annotations = json.loads((folder / REAL_FACES[name]).read_text())["annotations"]
    return [np.array(face["keypoints"], dtype=float).reshape(-1, 3)[:, :2] for face in annotations]


def mirrored(points, flip_pairs):
    order = np.arange(len(points))
    for first, second in flip_pairs:
        order[[first, second]] = second, first
    return (points * [-1, 1])[order]


def difference(shape, other):
    """RMS distance after the best move, turn and scale (Procrustes), as a share of the face's own size."""
    first, second = ((points - points.mean(axis=0)) @ [1, 1j] for points in (shape, other))
    fitted = first * np.vdot(first, second) / np.vdot(first, first)
    return float(np.sqrt((abs(second - fitted) ** 2).mean() / (abs(second) ** 2).mean()))


def mean_difference(faces, flip_pairs):
    return np.mean([difference(mirrored(face, flip_pairs), face) for face in faces])


@pytest.mark.parametrize("name", [*REAL_FACES, "dlib"])
def test_schema_mirrors_real_faces(name, shared_data):
    faces = real_faces(shared_data, name)
    schema = KEYPOINT_SCHEMAS["face_68" if name == "dlib" else name]
    assert {face.shape for face in faces} == {(len(schema.names), 2)}
    assert mean_difference(faces, schema.flip_pairs) < 0.3 < 0.9 < mean_difference(faces, ())


@pytest.mark.parametrize("name", REAL_FACES)
def test_changed_flip_pairs_mirror_real_faces_worse(name, shared_data):
    faces = real_faces(shared_data, name)
    pairs = KEYPOINT_SCHEMAS[name].flip_pairs
    right = mean_difference(faces, pairs)
    for position in range(len(pairs)):
        assert mean_difference(faces, pairs[:position] + pairs[position + 1 :]) > right
    rng = random.Random(0)
    for _ in range(300):
        first, second = rng.sample(range(len(pairs)), 2)
        wrong = list(pairs)
        wrong[first] = (pairs[first][0], pairs[second][1])
        wrong[second] = (pairs[second][0], pairs[first][1])
        assert mean_difference(faces, wrong) > right, (pairs[first], pairs[second])


@pytest.mark.parametrize("name", REAL_FACES)
def test_unpaired_points_are_in_the_middle_of_real_faces(name, shared_data):
    schema = KEYPOINT_SCHEMAS[name]
    alone = sorted(set(range(len(schema.names))) - {point for pair in schema.flip_pairs for point in pair})
    assert len(alone) == 10
    for face in real_faces(shared_data, name):
        left_eye, right_eye = face[list(schema.normalization_pair)]
        eye_distance = np.linalg.norm(right_eye - left_eye)
        across = (face - (left_eye + right_eye) / 2) @ (right_eye - left_eye) / eye_distance**2
        assert abs(across[alone]).max() < 0.35


@pytest.mark.parametrize("name", REAL_FACES)
def test_normalization_pairs_are_outer_eye_corners(name, shared_data):
    schema = KEYPOINT_SCHEMAS[name]
    assert schema.normalization_pair == {"face_68": (36, 45), "face_98": (60, 72)}[name]
    assert schema.normalization_pair in schema.flip_pairs
    eyes = {"face_68": range(36, 48), "face_98": range(60, 76)}[name]
    for face in real_faces(shared_data, name):
        left_eye, right_eye = schema.normalization_pair
        across = face @ (face[right_eye] - face[left_eye])
        assert min(eyes, key=lambda point: across[point]) == left_eye
        assert max(eyes, key=lambda point: across[point]) == right_eye


def test_named_schemas_pair_left_names_with_right_names():
    for name in ("coco_17", "face_5"):
        schema = KEYPOINT_SCHEMAS[name]
        for first, second in schema.flip_pairs:
            assert schema.names[first].replace("left", "right") == schema.names[second]
        sides = [position for position, point in enumerate(schema.names) if "_" in point]
        assert sorted(point for pair in schema.flip_pairs for point in pair) == sides
    assert KEYPOINT_SCHEMAS["face_5"].normalization_pair == (0, 1)
    assert KEYPOINT_SCHEMAS["coco_17"].normalization_pair is None
    assert {name: len(schema.names) for name, schema in KEYPOINT_SCHEMAS.items()} == {
        "coco_17": 17,
        "face_5": 5,
        "face_68": 68,
        "face_98": 98,
    }
    assert KEYPOINT_SCHEMAS["face_68"].names[:2] == ("00", "01")


def test_a_spec_is_a_name_a_schema_a_mapping_or_a_number():
    by_name = {"names": ["l", "r", "m"], "flip_pairs": [["l", "r"]], "normalization_pair": ["l", "m"]}
    by_position = {"names": ("l", "r", "m"), "flip_pairs": ((0, 1),), "normalization_pair": (0, 2)}
    schema = KeypointSchema(names=("l", "r", "m"), flip_pairs=((0, 1),), normalization_pair=(0, 2))
    assert keypoint_schema(by_name) == keypoint_schema(by_position) == schema
    assert keypoint_schema(schema) is schema
    assert keypoint_schema("face_5") is KEYPOINT_SCHEMAS["face_5"]
    assert keypoint_schema(12).names == tuple(f"{position:02d}" for position in range(12))
    assert keypoint_schema(12).flip_pairs == ()
    assert keypoint_schema({"names": ["a"], "flip_pairs": None}) == KeypointSchema(names=("a",))


def test_lists_become_tuples_so_that_schemas_compare_hash_and_pickle():
    schema = KeypointSchema(names=["a", "b"], flip_pairs=[[0, 1]], normalization_pair=[1, 0])
    assert schema == KeypointSchema(names=("a", "b"), flip_pairs=((0, 1),), normalization_pair=(1, 0))
    assert pickle.loads(pickle.dumps(schema)) == schema
    assert len({schema, KeypointSchema(names=("a", "b"))}) == 2
    with pytest.raises(FrozenInstanceError):
        schema.names = ()
    with pytest.raises(TypeError):
        KEYPOINT_SCHEMAS["mine"] = schema


def test_sigmas_of_coco_17_are_those_of_its_evaluation():
    params = pytest.importorskip("faster_coco_eval.core.cocoeval").Params(iouType="keypoints")
    assert KEYPOINT_SCHEMAS["coco_17"].sigmas == pytest.approx(params.kpt_oks_sigmas.tolist())


@pytest.mark.parametrize("name", ["coco_17", "face_68", "face_98"])
def test_skeleton_of_a_known_schema_is_its_own_mirror_image(name):
    schema = KEYPOINT_SCHEMAS[name]
    mirror = dict([*schema.flip_pairs, *(pair[::-1] for pair in schema.flip_pairs)])
    lines = {frozenset(edge) for edge in schema.skeleton}
    assert {frozenset(mirror.get(point, point) for point in edge) for edge in lines} == lines


@pytest.mark.parametrize(
    ("names", "pairs", "expected"),
    [
        (("left_eye", "right_eye", "nose"), ((0, 1),), ()),
        (("left_eye", "right_eye", "nose"), (), ("left_eye", "right_eye")),
        (("leftEye", "left ear", "right ear"), ((0, 1),), ("leftEye", "left ear", "right ear")),
        (("l_hip", "r_hip", "hand_L", "hand_R"), ((0, 1),), ("hand_L", "hand_R")),
        (("L1", "L2", "cleft"), (), ()),
        (("00", "01"), (), ()),
    ],
)
def test_names_of_a_side_need_a_pair_of_the_other_side(names, pairs, expected):
    schema = KeypointSchema(names=names, flip_pairs=pairs)
    assert names_without_mirror(schema) == expected
    if expected:
        with pytest.warns(UserWarning, match=f"{expected[0]}.*complete flip_pairs"):
            warn_of_sides(schema)
    else:
        warn_of_sides(schema)


def test_an_edge_of_a_skeleton_counts_once_in_either_direction():
    schema = keypoint_schema({"names": ["a", "b", "c"], "skeleton": [["b", "a"], [2, 1], ["a", "b"], [2, 1]]})
    assert schema.skeleton == ((1, 0), (2, 1))


def test_joined_tables_share_sigmas_and_skeleton_and_refuse_different_ones():
    bare = KeypointSchema(names=("a", "b"), flip_pairs=((0, 1),))
    with_sigmas = replace(bare, sigmas=(0.1, 0.2))
    with_skeleton = replace(bare, skeleton=((0, 1),))
    full = replace(with_sigmas, skeleton=((0, 1),))
    for schemas in itertools.permutations((bare, None, with_sigmas, with_skeleton)):
        assert common_schema(schemas) == full
    assert common_schema((None, None)) is None
    conflicts = (replace(bare, sigmas=(0.1, 0.3)), replace(bare, flip_pairs=()), KeypointSchema(names=("a", "b", "c")))
    for other in conflicts:
        with pytest.raises(ValueError, match="differ; read both sets with one schema"):
            common_schema((full, other))


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"names": ()}, ValueError, "at least 1 point"),
        ({"names": "ab"}, TypeError, "as strings"),
        ({"names": ("a", "a")}, ValueError, "'a' twice"),
        ({"names": ("a", "")}, ValueError, "is empty at position 1"),
        ({"names": (1, 2)}, TypeError, "as strings"),
        ({"names": 3}, TypeError, "int"),
        ({"flip_pairs": ((0, 3),)}, ValueError, "position 3, but there are 3 points"),
        ({"flip_pairs": ((0, -1),)}, ValueError, "position -1"),
        ({"flip_pairs": ((0, 1), (1, 2))}, ValueError, "position 1 twice"),
        ({"flip_pairs": ((1, 1),)}, ValueError, "with itself"),
        ({"flip_pairs": ((0, 1, 2),)}, ValueError, "expected two positions"),
        ({"flip_pairs": ("ab",)}, ValueError, "expected two positions"),
        ({"flip_pairs": ((0, 1.0),)}, TypeError, "must be int"),
        ({"flip_pairs": ((0, True),)}, TypeError, "must be int"),
        ({"normalization_pair": (0, 0)}, ValueError, "normalization_pair pairs position 0 with itself"),
        ({"normalization_pair": (0, 9)}, ValueError, "normalization_pair has position 9"),
        ({"normalization_pair": (0,)}, ValueError, "expected two positions"),
        ({"sigmas": (0.1, 0.2)}, ValueError, "sigmas has 2 numbers, but there are 3 points"),
        ({"sigmas": (0.1, 0.2, 0.0)}, ValueError, "finite and positive, got 0.0"),
        ({"sigmas": (0.1, 0.2, float("nan"))}, ValueError, "finite and positive, got nan"),
        ({"sigmas": (0.1, 0.2, True)}, TypeError, "must be numbers, got True"),
        ({"sigmas": "abc"}, TypeError, "one number per point"),
        ({"skeleton": ((0, 3),)}, ValueError, "skeleton has position 3, but there are 3 points"),
        ({"skeleton": ((2, 2),)}, ValueError, "skeleton pairs position 2 with itself"),
        ({"skeleton": ((0, 1.0),)}, TypeError, "must be int"),
    ],
    ids=str,
)
def test_invalid_schema_is_refused(values, error, message):
    arguments = {"names": ("a", "b", "c"), **values}
    with pytest.raises(error, match=message):
        KeypointSchema(**arguments)
    with pytest.raises(error, match=message):
        keypoint_schema(arguments)


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("face_29", ValueError, "unknown schema='face_29'; known schemas: coco_17, face_5, face_68, face_98"),
        (0, ValueError, "at least 1 point"),
        (True, TypeError, "bool"),
        (3.0, TypeError, "float"),
        (None, TypeError, "NoneType"),
        (["a"], TypeError, "list"),
        ({"flip_pairs": []}, ValueError, "no names"),
        ({"names": ["a"], "pairs": []}, ValueError, "'pairs'; expected names, flip_pairs, normalization_pair"),
        ({"names": ["a", "b"], "flip_pairs": [["a", "c"]]}, ValueError, "'c', which is not one of its names"),
        ({"names": ["a", "b"], "flip_pairs": ["ab"]}, ValueError, "expected two positions"),
    ],
    ids=str,
)
def test_invalid_spec_is_refused(spec, error, message):
    with pytest.raises(error, match=message):
        keypoint_schema(spec)
