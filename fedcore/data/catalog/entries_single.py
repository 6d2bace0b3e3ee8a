"""Catalog entries of the data sets without domains: FedAlign's, and most of SDFed's."""

from __future__ import annotations

from fedcore.data.entry import ONE_DOMAIN, PHOTO, Entry, known_classes

_GET = "`fedlens data get {name} --root FOLDER` fetches it through torchvision; or give a folder with {what}."


def _single(name: str, title: str, images: int, what: str, **more: object) -> Entry:
    """An entry that torchvision can fetch."""
    fields = {
        "classes": known_classes(name),
        "template": PHOTO,
        "how": _GET.format(name=name, what=what),
        "counts": {ONE_DOMAIN: images},
    }
    return Entry(name=name, title=title, domains=(ONE_DOMAIN,), **(fields | more))  # type: ignore[arg-type]


SINGLE_SETS: tuple[Entry, ...] = (
    _single(
        "cifar10",
        "CIFAR-10",
        60_000,
        "cifar-10-batches-py or cifar-10-python.tar.gz",
        source="10 classes of tiny colour photos, 32 x 32",
        citation="Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        licence="no licence stated by its authors; research use",
        loader="cifar",
        official="50,000 train, 10,000 test",
        torchvision="CIFAR10",
        megabytes=171,
    ),
    _single(
        "cifar100",
        "CIFAR-100",
        60_000,
        "cifar-100-python or cifar-100-python.tar.gz",
        source="100 classes of tiny colour photos, 32 x 32",
        citation="Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        licence="no licence stated by its authors; research use",
        loader="cifar",
        official="50,000 train, 10,000 test",
        torchvision="CIFAR100",
        megabytes=169,
    ),
    _single(
        "eurosat",
        "EuroSAT",
        27_000,
        "EuroSAT.zip or its class folders (RGB version)",
        source="10 classes of land use in Sentinel-2 images, 64 x 64, RGB version",
        citation="Helber et al., EuroSAT, IEEE Journal of Selected Topics in Applied Earth Observations and "
        "Remote Sensing, 2019",
        licence="MIT",
        loader="classes",
        torchvision="EuroSAT",
        megabytes=95,
    ),
    _single(
        "oxford-pets",
        "Oxford-IIIT Pets",
        7_349,
        "images and annotations",
        source="37 breeds of cats and dogs",
        citation="Parkhi et al., Cats and Dogs, CVPR 2012",
        licence="CC BY-SA 4.0",
        loader="pets",
        official="trainval.txt, 3,680 images, and test.txt, 3,669",
        torchvision="OxfordIIITPet",
        megabytes=811,
    ),
    _single(
        "food101",
        "Food-101",
        101_000,
        "food-101.tar.gz, or its images and meta",
        source="101 dishes; the training labels are noisy on purpose",
        citation="Bossard et al., Food-101: Mining Discriminative Components with Random Forests, ECCV 2014",
        licence="images from Foodspotting, not the authors' property; scientific fair use",
        loader="food",
        official="meta/train.json, 75,750 images, and meta/test.json, 25,250",
        torchvision="Food101",
        megabytes=4996,
    ),
    _single(
        "flowers102",
        "Flowers-102",
        8_189,
        "102flowers.tgz, imagelabels.mat and setid.mat",
        source="102 flowers of the United Kingdom",
        citation="Nilsback and Zisserman, Automated Flower Classification over a Large Number of Classes, "
        "ICVGIP 2008",
        licence="no licence stated by its authors; research use",
        loader="flowers",
        official="setid.mat: 1,020 train, 1,020 validation, 6,149 test; 'swapped' trains on the last two",
        torchvision="Flowers102",
        megabytes=345,
    ),
    _single(
        "dtd",
        "DTD",
        5_640,
        "dtd-r1.0.1.tar.gz, or its images and labels",
        source="47 textures, described by one adjective each",
        citation="Cimpoi et al., Describing Textures in the Wild, CVPR 2014",
        licence="made available for research purposes",
        loader="dtd",
        official="labels/train1.txt, val1.txt and test1.txt, 1,880 images each",
        torchvision="DTD",
        megabytes=625,
    ),
    _single(
        "caltech101",
        "Caltech-101",
        8_677,
        "caltech-101.zip or 101_ObjectCategories",
        source="101 classes of objects; BACKGROUND_Google is left out, as torchvision does",
        citation="Fei-Fei et al., Learning Generative Visual Models from Few Training Examples, "
        "CVPR Workshop 2004",
        licence="CC BY 4.0 (CaltechDATA)",
        loader="classes",
        torchvision="Caltech101",
        megabytes=137,
    ),
    Entry(
        name="tiny-imagenet",
        title="Tiny-ImageNet",
        domains=(ONE_DOMAIN,),
        classes=(),
        class_count=200,
        template=PHOTO,
        source="200 of ImageNet's classes, 64 x 64",
        citation="Le and Yang, Tiny ImageNet Visual Recognition Challenge, CS 231N, 2015",
        licence="ImageNet's terms: non-commercial research and teaching",
        how="Get cs231n.stanford.edu/tiny-imagenet-200.zip and give it, or its folder.",
        loader="tiny",
        counts={ONE_DOMAIN: 110_000},
        official="train, 100,000 images, and val, 10,000, which is the test set here: the set's own test "
        "images have no labels",
    ),
)
