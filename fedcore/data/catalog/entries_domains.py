"""Catalog entries of the data sets that come in domains: FedOT's, FedDEAP's, and two of SDFed's."""

from __future__ import annotations

from fedcore.data.entry import PHOTO, PICTURE, Entry, known_classes

_DOMAINBED = "DomainBed's download script (github.com/facebookresearch/DomainBed) downloads it."

_NPDR = "non-proliferative diabetic retinopathy"
DDR_GRADES = (
    "no diabetic retinopathy",
    f"mild {_NPDR}",
    f"moderate {_NPDR}",
    f"severe {_NPDR}",
    "proliferative diabetic retinopathy",
)
"""DDR's grades 0 to 4 in words."""

DIGITS = tuple("0123456789")
CHARACTERS = (
    *DIGITS,
    *(f"capital {letter}" for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    *(f"small {letter}" for letter in "abcdefghijklmnopqrstuvwxyz"),
)
"""FEMNIST's labels 0 to 61 in words; CLIP's tokens do not tell A from a."""

_LEAF = (
    "Run LEAF's data/femnist/preprocess.sh (github.com/TalwalkarLab/leaf) and give its data folder, "
    "or any folder with the all_data json files."
)
_LEAF_SOURCE = "characters of NIST Special Database 19 by writer, 28 x 28 grey, as LEAF prepares them"
_LEAF_CITATION = "Caldas et al., LEAF: A Benchmark for Federated Settings, arXiv:1812.01097, 2018"
_LEAF_SPLIT = "LEAF's train and test files, where preprocess.sh made them"

DOMAIN_SETS: tuple[Entry, ...] = (
    Entry(
        name="pacs",
        title="PACS",
        domains=("art_painting", "cartoon", "photo", "sketch"),
        classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
        template=PICTURE,
        source="7 classes in photos, art, cartoons and sketches; 9,991 images",
        citation="Li et al., Deeper, Broader and Artier Domain Generalization, ICCV 2017",
        licence="no licence stated by its authors; research use",
        how_to_get=f"{_DOMAINBED} Give the folder that holds art_painting, cartoon, photo and sketch.",
        counts={"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929},
        aliases={"art": "art_painting"},
    ),
    Entry(
        name="office-home",
        title="Office-Home",
        domains=("Art", "Clipart", "Product", "Real World"),
        classes=known_classes("office-home"),
        template=PICTURE,
        source="65 classes of everyday things in four styles; 15,588 images",
        citation="Venkateswara et al., Deep Hashing Network for Unsupervised Domain Adaptation, CVPR 2017",
        licence="its authors grant non-commercial research and teaching use",
        how_to_get="Its authors provide it at hemanthdv.org/officeHomeDataset.html. Give the folder that "
        "holds Art, Clipart, Product and Real World.",
        counts={"Art": 2427, "Clipart": 4365, "Product": 4439, "Real World": 4357},
        aliases={"real": "Real World"},
    ),
    Entry(
        name="vlcs",
        title="VLCS",
        domains=("Caltech101", "LabelMe", "SUN09", "VOC2007"),
        classes=("bird", "car", "chair", "dog", "person"),
        template=PICTURE,
        source="5 classes of four photo collections; 10,729 images",
        citation="Fang et al., Unbiased Metric Learning, ICCV 2013",
        licence="the terms of Caltech101, LabelMe, SUN09 and VOC2007 apply",
        how_to_get=f"{_DOMAINBED} Give the folder that holds Caltech101, LabelMe, SUN09 and VOC2007, each "
        "with its class folders.",
        counts={"Caltech101": 1415, "LabelMe": 2656, "SUN09": 3282, "VOC2007": 3376},
        aliases={
            "caltech": "Caltech101",
            "sun": "SUN09",
            "pascal": "VOC2007",
            "voc": "VOC2007",
            **dict(zip("01234", ("bird", "car", "chair", "dog", "person"), strict=True)),
        },
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
        template=PICTURE,
        source="10 classes from camera traps at four places, as selected by DomainBed",
        citation="Beery et al., Recognition in Terra Incognita, ECCV 2018",
        licence="Community Data License Agreement, permissive variant (LILA)",
        how_to_get=f"{_DOMAINBED} Give the folder that holds location_100, location_38, location_43 and "
        "location_46.",
        aliases={f"L{place}": f"location_{place}" for place in (100, 38, 43, 46)},
    ),
    Entry(
        name="domainnet",
        title="DomainNet",
        domains=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
        classes=(),
        class_count=345,
        template=PICTURE,
        source="345 classes in six styles; 586,575 images in the cleaned version",
        citation="Peng et al., Moment Matching for Multi-Source Domain Adaptation, ICCV 2019",
        licence="its authors' fair use notice; non-commercial research",
        how_to_get="Its authors provide it at ai.bu.edu/M3SDA (cleaned version). Give the folder that holds "
        "clipart, infograph, painting, quickdraw, real and sketch, or their zip files.",
        loader="lists",
        counts={
            "clipart": 48129,
            "infograph": 51605,
            "painting": 72266,
            "quickdraw": 172500,
            "real": 172947,
            "sketch": 69128,
        },
        official_split="clipart_train.txt, clipart_test.txt and so on, where they lie in the folder",
    ),
    Entry(
        name="domainnet-126",
        title="DomainNet-126",
        domains=("clipart", "painting", "real", "sketch"),
        classes=known_classes("domainnet-126"),
        template=PHOTO,
        source="126 of DomainNet's classes in four of its domains",
        citation="Saito et al., Semi-supervised Domain Adaptation via Minimax Entropy, ICCV 2019; "
        "Peng et al., Moment Matching for Multi-Source Domain Adaptation, ICCV 2019",
        licence="as DomainNet: its authors' fair use notice; non-commercial research",
        how_to_get="Give DomainNet's folder (ai.bu.edu/M3SDA, cleaned version). With clipart_list.txt, "
        "painting_list.txt, real_list.txt and sketch_list.txt in it, as work on domain adaptation has them, "
        "the images are those listed; else all of the 126 classes.",
        loader="lists",
        official_split="DomainNet's txt files, where they lie in the folder without the four lists",
        subset=True,
    ),
    Entry(
        name="office31",
        title="Office-31",
        domains=("amazon", "dslr", "webcam"),
        classes=known_classes("office31"),
        template=PHOTO,
        source="31 classes of office things from a shop and two cameras; 4,110 images",
        citation="Saenko et al., Adapting Visual Category Models to New Domains, ECCV 2010",
        licence="no licence stated by its authors; research use",
        how_to_get="Its authors provide it at faculty.cc.gatech.edu/~judy/domainadapt. Give the folder "
        "that holds amazon, dslr and webcam.",
        counts={"amazon": 2817, "dslr": 498, "webcam": 795},
        aliases={"backpack": "back_pack", "laptop": "laptop_computer"},
    ),
    Entry(
        name="office-caltech10",
        title="Office-Caltech10",
        domains=("amazon", "caltech", "dslr", "webcam"),
        classes=known_classes("office-caltech10"),
        template=PHOTO,
        source="the 10 classes that Office-31 and Caltech-256 share; 2,533 images",
        citation="Gong et al., Geodesic Flow Kernel for Unsupervised Domain Adaptation, CVPR 2012",
        licence="no licence stated by its authors; research use",
        how_to_get="Give the folder that holds amazon, caltech, dslr and webcam, each with its class "
        "folders.",
        counts={"amazon": 958, "caltech": 1123, "dslr": 157, "webcam": 295},
        aliases={
            "caltech10": "caltech",
            "003.backpack": "back_pack",
            "224.touring-bike": "bike",
            "027.calculator": "calculator",
            "101.head-phones": "headphones",
            "045.computer-keyboard": "keyboard",
            "127.laptop-101": "laptop_computer",
            "046.computer-monitor": "monitor",
            "047.computer-mouse": "mouse",
            "041.coffee-mug": "mug",
            "238.video-projector": "projector",
        },
    ),
    Entry(
        name="ddr",
        title="DDR",
        domains=("HB", "HD", "LB", "LD"),
        classes=DDR_GRADES,
        template=PHOTO,
        source="fundus photographs in five grades of diabetic retinopathy; 13,673 images, 12,522 of them "
        "graded",
        citation="Li et al., Diagnostic Assessment of Deep Learning Algorithms for Diabetic Retinopathy "
        "Screening, Information Sciences 501, 2019",
        licence="its authors grant non-commercial research use",
        how_to_get="Its authors provide it at github.com/nkicsl/DDR-dataset. Give the folder DR_grading, "
        "with train, valid, test and their txt files.",
        loader="ddr",
        counts={"all": 12522},
        official_split="train.txt, valid.txt and test.txt: 6,260, 2,503 and 3,759 graded images",
    ),
    Entry(
        name="femnist",
        title="FEMNIST",
        domains=(),
        classes=CHARACTERS,
        template="a picture of the character: {}.",
        source=f"62 classes: {_LEAF_SOURCE}",
        citation=_LEAF_CITATION,
        licence="NIST's data are in the public domain; LEAF's code is BSD",
        how_to_get=_LEAF,
        loader="leaf",
        official_split=_LEAF_SPLIT,
    ),
    Entry(
        name="femnist-digits",
        title="FEMNIST, digits",
        domains=(),
        classes=DIGITS,
        template="a picture of the number: {}.",
        source=f"the digits 0 to 9 only, as in FedOT: {_LEAF_SOURCE}",
        citation=_LEAF_CITATION,
        licence="NIST's data are in the public domain; LEAF's code is BSD",
        how_to_get=_LEAF,
        loader="leaf",
        official_split=_LEAF_SPLIT,
    ),
)
