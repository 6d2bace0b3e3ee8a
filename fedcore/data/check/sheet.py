"""A first look at a data set: one small picture of each class in each domain."""

from __future__ import annotations

import numpy as np
from PIL import Image

from fedcore.data.images import ImageSet

SIDE = 56  # pixels of a picture


def contact_sheet(images: ImageSet, columns: int = 10, rows: int = 8) -> Image.Image:
    """A row of pictures per domain, a column per class: the first of each; grey where there is none."""
    domains, classes = images.domains[:rows], images.classes[:columns]
    sheet = Image.new("RGB", (len(classes) * SIDE, len(domains) * SIDE), (127, 127, 127))
    for i in range(len(domains)):
        for j in range(len(classes)):
            found = np.flatnonzero((np.asarray(images.domain) == i) & (np.asarray(images.labels) == j))
            if found.size:
                picture = images.read(int(found[0])).convert("RGB").resize((SIDE - 2, SIDE - 2))
                sheet.paste(picture, (j * SIDE + 1, i * SIDE + 1))
    return sheet
