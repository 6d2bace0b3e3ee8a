"""The data sets by name: what each is, where it comes from and under which terms. Nothing is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from fedcore.data import digits, shapes

_PICTURE = "a picture of a {}."


@dataclass(frozen=True)
class Entry:
    """One data set of the catalog.

    Attributes:
        name: key in an experiment, e.g. ``pacs``.
        title: as shown.
        domains: in the data set's order (folder names for data sets on disk); empty where any will do.
        classes: folder names, sorted; empty where they are read from the folder.
        template: prompt with one ``{}`` for the class name.
        source: who made it.
        licence: what is known of its terms; a note, not advice.
        how: how to get it, for the error message and the page.
        embedded: comes with FedLens, needs no folder.
    """

    name: str
    title: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    template: str
    source: str
    licence: str
    how: str
    embedded: bool = False


ENTRIES: tuple[Entry, ...] = (
    Entry(
        name="rotated-digits",
        title="Rotated digits",
        domains=digits.DOMAINS,
        classes=digits.CLASSES,
        template=digits.TEMPLATE,
        source="1,797 handwritten digits (UCI Optical Recognition, bundled with scikit-learn), six rotations",
        licence="CC BY 4.0 (UCI Machine Learning Repository)",
        how="Comes with FedLens.",
        embedded=True,
    ),
    Entry(
        name="shapes",
        title="Shapes",
        domains=shapes.DOMAINS,
        classes=shapes.CLASSES,
        template=shapes.TEMPLATE,
        source="drawn by FedLens, in several styles and rotations",
        licence="Apache-2.0, as FedLens",
        how="Comes with FedLens.",
        embedded=True,
    ),
    Entry(
        name="folder",
        title="A folder of your own",
        domains=(),
        classes=(),
        template=_PICTURE,
        source="any images",
        licence="yours to know",
        how="Give a folder of domain/class/image or class/image.",
    ),
    Entry(
        name="pacs",
        title="PACS",
        domains=("art_painting", "cartoon", "photo", "sketch"),
        classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
        template=_PICTURE,
        source="Li et al., Deeper, Broader and Artier Domain Generalization, ICCV 2017; 9,991 images",
        licence="no licence stated by its authors; research use",
        how="Give the folder that holds art_painting, cartoon, photo and sketch, as its authors hand it out.",
    ),
    Entry(
        name="office-home",
        title="Office-Home",
        domains=("Art", "Clipart", "Product", "Real World"),
        classes=(),
        template=_PICTURE,
        source="Venkateswara et al., Deep Hashing Network for Domain Adaptation, CVPR 2017; 65 classes",
        licence="its authors grant non-commercial research and teaching use",
        how="Give the folder that holds Art, Clipart, Product and Real World, as its authors hand it out.",
    ),
    Entry(
        name="vlcs",
        title="VLCS",
        domains=("Caltech101", "LabelMe", "SUN09", "VOC2007"),
        classes=("bird", "car", "chair", "dog", "person"),
        template=_PICTURE,
        source="Fang et al., Unbiased Metric Learning, ICCV 2013; 5 classes of four photo collections",
        licence="the terms of Caltech101, LabelMe, SUN09 and VOC2007 apply",
        how="Give the folder that holds Caltech101, LabelMe, SUN09 and VOC2007, each with its class folders.",
    ),
    Entry(
        name="terra-incognita",
        title="TerraIncognita",
        domains=("location_100", "location_38", "location_43", "location_46"),
        classes=(
            "bird",
            "bobcat",
            "cat",
            "coyote",
            "dog",
            "empty",
            "opossum",
            "rabbit",
            "raccoon",
            "squirrel",
        ),
        template=_PICTURE,
        source="Beery et al., Recognition in Terra Incognita, ECCV 2018; camera traps at four places",
        licence="Community Data License Agreement, permissive variant (LILA)",
        how="Give the folder that holds location_100, location_38, location_43 and location_46.",
    ),
    Entry(
        name="domainnet",
        title="DomainNet",
        domains=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
        classes=(),
        template=_PICTURE,
        source="Peng et al., Moment Matching for Multi-Source Domain Adaptation, ICCV 2019; 345 classes",
        licence="its authors' fair use notice; non-commercial research",
        how="Give the folder that holds clipart, infograph, painting, quickdraw, real and sketch.",
    ),
    Entry(
        name="office31",
        title="Office-31",
        domains=("amazon", "dslr", "webcam"),
        classes=(),
        template=_PICTURE,
        source="Saenko et al., Adapting Visual Category Models to New Domains, ECCV 2010; 31 classes",
        licence="no licence stated by its authors; research use",
        how="Give the folder that holds amazon, dslr and webcam, each with its class folders in it.",
    ),
)
