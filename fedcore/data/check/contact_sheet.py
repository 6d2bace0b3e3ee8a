"""A contact sheet of a data set: one thumbnail of each class in each domain."""

from __future__ import annotations

import numpy as np
from PIL import Image

from fedcore.data.images import ImageSet

SIDE = 56
"""Side of a thumbnail, pixels."""


def contact_sheet(images: ImageSet, columns: int = 10, rows: int = 8) -> Image.Image:
    """Draw the first image of each class (column) in each domain (row); grey where there is none."""
    domains, classes = images.domains[:rows], images.classes[:columns]
    sheet = Image.new("RGB", (len(classes) * SIDE, len(domains) * SIDE), (127, 127, 127))
    for i in range(len(domains)):
        for j in range(len(classes)):
            members = np.flatnonzero((np.asarray(images.domain) == i) & (np.asarray(images.labels) == j))
            if members.size:
                thumbnail = images.read(int(members[0])).convert("RGB").resize((SIDE - 2, SIDE - 2))
                sheet.paste(thumbnail, (j * SIDE + 1, i * SIDE + 1))
    return sheet
