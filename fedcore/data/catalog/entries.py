"""The entries of all data sets: content, source and terms of each; nothing is loaded."""

from __future__ import annotations

from fedcore.data.catalog.entries_domains import DOMAIN_SETS
from fedcore.data.catalog.entries_single import SINGLE_SETS
from fedcore.data.drawn import digits, shapes
from fedcore.data.entry import PICTURE, Entry

ENTRIES: tuple[Entry, ...] = (
    Entry(
        name="rotated-digits",
        title="Rotated digits",
        domains=digits.DOMAINS,
        classes=digits.CLASSES,
        template=digits.TEMPLATE,
        source="1,797 handwritten digits (UCI Optical Recognition, bundled with scikit-learn), six rotations",
        citation="Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning "
        "Repository, 1998",
        licence="CC BY 4.0 (UCI Machine Learning Repository)",
        how_to_get="Comes with FedLens.",
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
        how_to_get="Comes with FedLens.",
        embedded=True,
    ),
    Entry(
        name="folder",
        title="A folder of your own",
        domains=(),
        classes=(),
        template=PICTURE,
        source="any images",
        licence="the terms of your images apply",
        how_to_get="Give a folder of domain/class/image or class/image.",
        loader="folder",
    ),
    Entry(
        name="manifest",
        title="A CSV list of your own",
        domains=(),
        classes=(),
        template=PICTURE,
        source="any images, listed in a CSV file by path and label, and by domain, client and split if known",
        licence="the terms of your images apply",
        how_to_get="Give a CSV file with the columns path and label (domain, client, split), in the "
        "folder of its images or above it.",
        loader="manifest",
    ),
    Entry(
        name="hf-dataset",
        title="A Hugging Face data set on disk",
        domains=(),
        classes=(),
        template=PICTURE,
        source="any images, saved with save_to_disk of the datasets library",
        licence="see the data set's card",
        how_to_get="Give the folder that save_to_disk wrote; the package 'datasets' reads it.",
        loader="hf",
    ),
    *DOMAIN_SETS,
    *SINGLE_SETS,
)
"""All data sets, the embedded ones first."""
