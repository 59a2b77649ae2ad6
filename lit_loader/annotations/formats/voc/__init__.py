"""Pascal VOC: one XML file per image, plain or unified.

The **unified VOC format** is VOC with additions that other VOC readers ignore. A file that needs none of them is
plain VOC.

    <annotation>
        <folder>Annotations</folder>
        <filename>portrait.jpg</filename>
        <size>
            <width>640</width>
            <height>480</height>
            <depth>3</depth>
        </size>
        <schema>
            <keypoints>
                <point name="left eye" sigma="0.025"/>
                <point name="right eye" sigma="0.025"/>
                <point name="nose" sigma="0.026"/>
                <mirror first="left eye" second="right eye"/>
                <edge first="left eye" second="nose"/>
                <normalization_pair first="left eye" second="right eye"/>
            </keypoints>
            <attribute>
                <name>expression</name>
                <value>calm</value>
                <value>laughing</value>
            </attribute>
        </schema>
        <object>
            <name>face</name>
            <truncated>0</truncated>
            <difficult>0</difficult>
            <occluded>1</occluded>
            <bndbox>
                <xmin>100</xmin>
                <ymin>80.5</ymin>
                <xmax>220</xmax>
                <ymax>240</ymax>
            </bndbox>
            <keypoints>
                <point name="left eye" x="130" y="120.25" visibility="2"/>
                <point name="nose" x="155" y="165" visibility="1"/>
            </keypoints>
            <attributes>
                <attribute>
                    <name>expression</name>
                    <value>laughing</value>
                </attribute>
            </attributes>
        </object>
        <object>
            <name>face</name>
            <crowd>1</crowd>
            <bndbox>
                <xmin>300</xmin>
                <ymin>10</ymin>
                <xmax>640</xmax>
                <ymax>200</ymax>
            </bndbox>
        </object>
    </annotation>

``<keypoints>`` of an object: its points by name, in pixels, in any order. ``visibility`` is COCO's number: 1
hidden, 2 visible (the default). An absent point is omitted; the reader also accepts 0 for it. An object with points
may lack ``<bndbox>``: it gets the tight box of its points. Predicted points may have a ``score``, which readers ignore.

``<robndbox>`` of an object: its oriented box, in pixels. With ``<type>robndbox</type>`` next to it, as roLabelImg
writes it: ``<cx>``, ``<cy>``, ``<w>``, ``<h>`` and ``<angle>``, in radians clockwise on the screen. Or four corners as
in DIOR-R: ``<x_left_top>``, ``<y_left_top>``, then ``right_top``, ``right_bottom`` and ``left_bottom``, in the order of
the annotation. ``<bndbox>`` is then the box around it, and may be missing.

``<attributes>`` of an object: named values, in the layout of CVAT and Datumaro; an empty value means no value.

``<crowd>`` 1: the box contains a group, as COCO's ``iscrowd``.

``<schema>`` is the same in every file of a set, so that any file, split or subset is read with the same columns
and without further arguments. It lists the points in order, the pairs that a horizontal flip exchanges
(``<mirror>``), and the pair whose distance normalizes an error; the attributes in order, with their values in the
order of the ids; and ``<class>`` names in the order of the class ids. The points of a known schema are not listed:
``<keypoints schema="face_68"/>``. Omitted parts are collected from the objects and sorted. A set without points and
attributes, whose classes are the sorted names of its objects, is written without ``<schema>``, as plain VOC.

Numbers are decimal and restore float32 exactly.
"""

from lit_loader.annotations.formats.voc.reader import VocReader
from lit_loader.annotations.formats.voc.writer import VocWriter, voc_image_paths, write_image_xml

__all__ = ["VocReader", "VocWriter", "voc_image_paths", "write_image_xml"]
