"""A file of another format is refused by its name, whichever reader was pointed at it."""

from __future__ import annotations

import json

import pytest

from lit_loader.annotations.formats import read_annotations
from lit_loader.errors import AnnotationError, UnsafePathError
from tests.support.text_sets import write_image

CVAT = '<?xml version="1.0"?>\n<annotations>\n <version>1.1</version><image id="0" name="a.jpg"/></annotations>'
OLD_LABELME = (
    "<annotation><filename>a.jpg</filename><object><name>x</name><deleted>0</deleted><verified>0</verified>"
    "<polygon><pt><x>1</x><y>2</y></pt></polygon></object></annotation>"
)
IMGLAB = "<dataset><name>x</name><images><image file='a.jpg'></image></images></dataset>"
REGION = {"shape_attributes": {"name": "rect", "x": 1}, "region_attributes": {}}
VIA = json.dumps({"a.jpg123": {"filename": "a.jpg", "size": 123, "regions": [REGION]}}, indent=1)
LABELME = json.dumps({"version": "5.0.1", "flags": {}, "shapes": [], "imagePath": "a.jpg"}, indent=1)
COCO = json.dumps({"info": {}, "images": [], "annotations": [], "categories": []})
OPEN_IMAGES = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax\na,xclick,/m/0,1,0.2,1,0.3,0.5\n"
VOTT = '"image","xmin","ymin","xmax","ymax","label"\n"a.jpg",10,5,20,7,"helmet"\n'
VGGFACE2_BOXES = "NAME_ID,X,Y,W,H\nn000001/0001_01,2,2,1,2\n"
VGGFACE2_POINTS = "NAME_ID,P1X,P1Y,P2X,P2Y,P3X,P3Y,P4X,P4Y,P5X,P5Y\na,1,2,3,4,5,6,7,8,9,10\n"
VOTT_JSON = json.dumps({"asset": {"format": "jpg", "name": "a.jpg"}, "regions": []})
BOX = {"label": "dog", "coordinates": {"x": 5, "y": 6, "width": 2, "height": 3}}
CREATEML = json.dumps([{"image": "a.jpg", "annotations": [BOX]}])
LABEL_STUDIO = json.dumps([{"id": 1, "annotations": [{"id": 1, "completed_by": 1, "result": []}]}])
MPII = json.dumps([{"joints_vis": [1], "joints": [[1, 2]], "image": "a.jpg", "center": [1, 2], "scale": 1}])
KITTI = "Car 0.00 0 -1.58 587.01 173.33 614.12 200.12 1.65 1.67 3.64 -0.65 1.71 46.70 -1.59\n"
DOTA = "imagesource:GoogleEarth\ngsd:0.14\n1 2 3 2 3 4 1 4 plane 0\n"
ICDAR_2013 = '38, 43, 92, 215, "Tiredness"\n'
ICDAR_2015 = "37,11,46,11,46,13,37,13,Genaxis Theatre\n"
TPS = "LM=2\n1.0 2.0\n3.0 4.0\nIMAGE=a.jpg\nID=0\n"
DEEPLABCUT = "scorer,me,me\nbodyparts,nose,nose\ncoords,x,y\na.jpg,1,2\n"
CASES = [
    ("coco", "json", CREATEML, "CreateML JSON: export it as COCO or Pascal VOC"),
    ("coco", "json", LABEL_STUDIO, "Label Studio JSON: export it from Label Studio as COCO, YOLO or Pascal VOC"),
    ("coco", "json", VOTT_JSON, "VoTT JSON: export it from VoTT as CSV, which keypoints_csv reads"),
    ("coco", "json", MPII, "MPII's poses: convert them to COCO keypoints"),
    ("coco", "mat", "MATLAB 5.0 MAT-file, Platform", "MPII's poses: convert them to COCO keypoints"),
    ("keypoints_txt", "txt", KITTI, "KITTI labels: convert them to COCO or YOLO"),
    ("keypoints_txt", "txt", DOTA, "DOTA labels of oriented boxes"),
    ("keypoints_txt", "txt", DOTA.split("\n", 2)[2], "DOTA labels of oriented boxes"),
    ("keypoints_txt", "txt", ICDAR_2013, "ICDAR text: convert"),
    ("class_list", "txt", ICDAR_2015, "ICDAR text: convert"),
    ("keypoints_txt", "tps", TPS, "TPS of tpsDig: write path, x and y as CSV"),
    ("class_list", "csv", DEEPLABCUT, "DeepLabCut CSV: keypoints_txt reads it with separator=',', header=3"),
    ("voc", "xml", CVAT, "CVAT XML: export it from CVAT as COCO or Pascal VOC"),
    ("voc", "xml", OLD_LABELME, "old LabelMe XML: convert it to COCO or Pascal VOC"),
    ("voc", "xml", IMGLAB, "imglab XML: read it as 'imglab'"),
    ("coco", "json", VIA, "VIA JSON: export it from VIA as COCO"),
    ("coco", "json", LABELME, "LabelMe JSON: read it as 'labelme'"),
    ("labelme", "json", COCO, "COCO JSON: read it as 'coco'"),
    ("keypoints_csv", "csv", OPEN_IMAGES, "Open Images CSV: convert it to COCO"),
    ("class_list", "csv", "ImageID,Subset,OriginalURL\na,train,x\n", "Open Images CSV: convert it to COCO"),
    ("class_list", "csv", VOTT, "VoTT CSV: read it as 'keypoints_csv'"),
    ("keypoints_csv", "csv", VGGFACE2_BOXES, "VGGFace2 CSV: keypoints_csv reads it with box_columns=X,Y,W,H"),
    ("keypoints_csv", "csv", VGGFACE2_POINTS, "VGGFace2 CSV: keypoints_csv reads it with schema=face_5"),
]


@pytest.mark.parametrize(("format", "ending", "text", "words"), CASES)
def test_file_of_another_format_is_named_with_a_remedy(tmp_path, format, ending, text, words):
    write_image(tmp_path / "a.jpg")
    (tmp_path / f"set.{ending}").write_text(text)
    name = "." if format == "voc" else f"set.{ending}"
    options = {"voc": {"annotation_dir": "."}, "keypoints_txt": {"columns": "path class"}}.get(format, {})
    with pytest.raises(AnnotationError) as error:
        read_annotations(format, tmp_path, name, use_cache=False, **options)
    message = str(error.value)
    assert f"set.{ending}" in message
    assert f"this is {words}" in message
    assert f"(as '{format}': " in message


BOXES = {"box_columns": ["X", "Y", "W", "H"], "box_format": "xywh"}
POSE = {"columns": "path points", "separator": ",", "header": 3, "schema": 1}


@pytest.mark.parametrize(
    ("format", "text", "options", "values"),
    [
        ("keypoints_csv", VOTT, {}, [10, 5, 20, 7]),
        ("keypoints_csv", VGGFACE2_BOXES.replace("n000001/0001_01", "a"), BOXES, [2, 2, 3, 4]),
        ("keypoints_csv", VGGFACE2_POINTS, {"schema": "face_5"}, [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]),
        ("keypoints_txt", DEEPLABCUT, POSE, [[1, 2]]),
        # As TPS has points, from the lower edge.
        ("keypoints_csv", "path,x0,y0\na.jpg,3,4\n", {"schema": 1, "y_up": True}, [[3, 46]]),
    ],
)
def test_hints_of_other_formats_work(tmp_path, format, text, options, values):
    write_image(tmp_path / "a.jpg")
    (tmp_path / "a.csv").write_text(text)
    table = read_annotations(format, tmp_path, "a.csv", use_cache=False, **options)
    assert (table.boxes if table.keypoints is None else table.keypoints).tolist() == [values]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("label_2/0.txt", "'label_2' is there: KITTI labels"),
        ("labelTxt/0.txt", "'labelTxt' is there: DOTA labels"),
        ("train/labelTxt-v1.0/0.txt", "'labelTxt-v1.0' is there: DOTA labels"),
        ("set.vott", "'set.vott' is there: a VoTT project"),
        ("train/_annotations.createml.json", "'_annotations.createml.json' is there: CreateML JSON"),
        ("train/gt_img_1.txt", "'gt_img_1.txt' is there: ICDAR text"),
        ("mpii_human_pose_v1_u12_1.mat", "is there: MPII's poses"),
        ("wings.tps", "'wings.tps' is there: TPS"),
        ("labeled-data/video/img.png", "'labeled-data' is there: DeepLabCut"),
    ],
)
@pytest.mark.parametrize("format", ["voc", "coco", "yolo", "pts"])
def test_folder_of_another_format_is_named_with_a_remedy(tmp_path, format, entry, words):
    path = tmp_path / entry
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    with pytest.raises(AnnotationError) as error:
        read_annotations(format, tmp_path, "train", use_cache=False)
    assert words in str(error.value)


def test_own_format_errors_and_unsafe_paths_get_no_hint(tmp_path):
    quiet = {"use_cache": False}
    (tmp_path / "a.json").write_text('{"images": [{"id": 1, "file_name": "x.jpg"}], "annotations": []}')
    with pytest.raises(AnnotationError) as error:
        read_annotations("coco", tmp_path, "a.json", **quiet)
    assert "this is" not in str(error.value)
    (tmp_path / "a.csv").write_text(f"{VOTT}../b.jpg,1,2,3,4,x\n")
    with pytest.raises(UnsafePathError, match="this is VoTT CSV"):
        read_annotations("class_list", tmp_path, "a.csv", separator=",", label_columns=[5], **quiet)
