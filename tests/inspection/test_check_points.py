"""Checks of points: exchanged sides are found, and turned, rotated and bending objects are not reported."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lit_loader.annotations import KEYPOINT_SCHEMAS, KeypointSchema
from tests.support.checking import assert_known_kinds, check_annotations, counts_of, point_table

FACE = KEYPOINT_SCHEMAS["face_5"]
MIRROR = [1, 0, 2, 4, 3]
# Eyes, nose and corners of the mouth of a head, in millimetres; z is towards the camera.
HEAD = np.array([[-32, -35, 30], [32, -35, 30], [0, 0, 60], [-26, 35, 40], [26, 35, 40]])


def draw_faces(num_faces, *, yaw=30, roll=20, seed=0):
    """Return the points of heads that are turned up to ``yaw`` degrees and rotated up to ``roll`` degrees."""
    rng = np.random.default_rng(seed)
    angles = np.deg2rad(rng.uniform(-1, 1, (num_faces, 3)) * (yaw, 20, roll))
    points = np.empty((num_faces, 5, 2))
    for face, (y, p, r) in enumerate(angles):
        turn = np.array([[np.cos(y), 0, np.sin(y)], [0, 1, 0], [-np.sin(y), 0, np.cos(y)]])
        nod = np.array([[1, 0, 0], [0, np.cos(p), -np.sin(p)], [0, np.sin(p), np.cos(p)]])
        tilt = np.array([[np.cos(r), -np.sin(r), 0], [np.sin(r), np.cos(r), 0], [0, 0, 1]])
        head = (HEAD * rng.uniform(0.8, 1.2, (5, 3))) @ (tilt @ nod @ turn).T
        points[face] = head[:, :2] * rng.uniform(0.5, 3) + rng.uniform(300, 600, 2)
    return points


def test_faces_with_left_and_right_exchanged_are_found(tmp_path):
    points = draw_faces(200)
    swapped_rows = [3, 77, 150]
    points[swapped_rows] = points[swapped_rows][:, MIRROR]
    findings = check_annotations(point_table(tmp_path, points, FACE))
    assert_known_kinds(findings)
    assert counts_of(findings) == {"swapped_points": 3}
    assert sorted(finding.object_row for finding in findings if finding.kind == "swapped_points") == swapped_rows


def test_side_is_decided_by_all_sets_together(tmp_path):
    points = draw_faces(60)
    swapped_points = points[:2, MIRROR]
    findings = check_annotations(point_table(tmp_path, points, FACE), point_table(tmp_path / "b", swapped_points, FACE))
    assert findings.counts["swapped_points", "warning", "1"] == 2
    assert counts_of(findings) == {"swapped_points": 2}


@pytest.mark.parametrize(("yaw", "roll"), [(30, 180), (90, 20), (90, 180)])
def test_profiles_and_rotated_faces_are_not_reported(tmp_path, yaw, roll):
    points = np.concatenate([draw_faces(300), draw_faces(300, yaw=yaw, roll=roll, seed=1)])
    assert counts_of(check_annotations(point_table(tmp_path, points, FACE))) == {}


def test_exchanged_points_are_found_among_profiles_and_with_absent_points(tmp_path):
    points = np.concatenate([draw_faces(100), draw_faces(50, yaw=80, seed=1)])
    points[:2] = points[:2, MIRROR]
    present = np.random.default_rng(0).random(points.shape[:2]) < 0.8
    present[:2] = True
    findings = check_annotations(point_table(tmp_path, points, FACE, present=present))
    assert counts_of(findings) == {"swapped_points": 2}


def test_many_mirrored_objects_are_notes_with_their_rows(tmp_path):
    points = draw_faces(100)
    points[:20] = points[:20, MIRROR]
    findings = check_annotations(point_table(tmp_path, points, FACE))
    assert counts_of(findings) == {"mirrored_points": 20}
    assert {finding.object_row for finding in findings.details["mirrored_points", "note", "0"]} == set(range(20))


def test_share_of_mirrored_objects_is_of_each_set(tmp_path):
    points = draw_faces(200)
    points[:2] = points[:2, MIRROR]
    points[150:] = points[150:, MIRROR]
    tables = [point_table(tmp_path / name, part, FACE) for name, part in (("a", points[:150]), ("b", points[150:]))]
    findings = check_annotations(*tables)
    assert findings.counts["swapped_points", "warning", "0"] == 2
    assert findings.counts["swapped_points", "warning", "1"] == 50
    assert counts_of(findings) == {"swapped_points": 52}


def test_objects_without_a_common_shape_are_not_compared(tmp_path):
    # Limbs that bend; every tenth person is seen from behind.
    rng = np.random.default_rng(0)
    points = rng.normal(0, 40, (200, 5, 2)) + draw_faces(200)
    assert counts_of(check_annotations(point_table(tmp_path, points, FACE))) == {}


def test_two_points_or_few_objects_decide_nothing(tmp_path):
    eyes = KeypointSchema(names=("left", "right"), flip_pairs=((0, 1),))
    points = draw_faces(50)[:, :2]
    points[0] = points[0, ::-1]
    assert counts_of(check_annotations(point_table(tmp_path, points, eyes))) == {}
    points = draw_faces(10)
    points[0] = points[0, MIRROR]
    assert counts_of(check_annotations(point_table(tmp_path, points, FACE))) == {}


def test_points_outside_of_the_image_are_one_finding_per_object(tmp_path):
    points = draw_faces(3)
    points[1, :2] = (-7, 40), (50, 1003)
    points[2, 0] = (1000.5, 40)  # less than a pixel outside
    findings = check_annotations(point_table(tmp_path, points, FACE))
    assert counts_of(findings) == {"keypoint_outside": 1}
    (finding,) = (finding for finding in findings if finding.kind == "keypoint_outside")
    assert finding.object_row == 1
    assert "'left_eye' (-7, 40), 'right_eye' (50, 1003) are outside the image (1000 x 1000)" in finding.message


def test_collapsed_points_and_points_at_the_origin_are_found_once(tmp_path):
    points = draw_faces(4)
    points[1] = (30, 40)
    points[2] = 0
    points[3, 1] = 0
    findings = check_annotations(point_table(tmp_path, points, FACE))
    assert counts_of(findings) == {"collapsed_points": 2, "point_at_origin": 1}
    rows = {finding.kind: finding.object_row for finding in findings if finding.severity == "warning"}
    assert rows["point_at_origin"] == 3


def test_absent_points_are_not_checked(tmp_path):
    points = draw_faces(2)
    points[:, 0] = (-50, -50)
    points[:, 1] = 0
    present = np.array([[False, False, True, True, True]] * 2)
    assert counts_of(check_annotations(point_table(tmp_path, points, FACE, present=present))) == {}


def test_box_around_points_outside_is_not_reported_again(tmp_path):
    points = draw_faces(1)
    points[0, 0] = (-20, points[0, 1, 1])
    box = [*points[0].min(axis=0), *points[0].max(axis=0)]
    table = replace(point_table(tmp_path, points, FACE), boxes=[box])
    assert counts_of(check_annotations(table)) == {"keypoint_outside": 1}
