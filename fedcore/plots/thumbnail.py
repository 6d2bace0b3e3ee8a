"""A heatmap of a few pixels, for a cell of a table."""

import base64
import io
from functools import cache
from math import ceil

import numpy as np

from fedcore.plots.theme import ACCURACY_SCALE

PIXELS, ENOUGH = 4, 128
"""Pixels of a cell's side, as browsers smooth what they enlarge; fewer in a picture of more pixels."""
NO_DATA = (160, 166, 173)


def thumbnail(shares: np.ndarray) -> str:
    """Return accuracies as a PNG in a ``data:`` address, on the scale of the heatmaps from 0 to 100 %.

    Args:
        shares: by model and test set, 0 to 1; nan where nothing was measured. Shape: (models, test sets).
    """
    from PIL import Image

    measured = ~np.isnan(shares)
    steps = np.where(measured, 100 * shares, 0).round().astype(int).clip(0, 100)
    colours = np.where(measured[..., None], _scale()[steps], np.array(NO_DATA, dtype=np.uint8))
    pixels = min(PIXELS, ceil(ENOUGH / max(shares.shape)))
    picture = Image.fromarray(colours.astype(np.uint8)).resize(
        (pixels * shares.shape[1], pixels * shares.shape[0]), Image.Resampling.NEAREST
    )
    out = io.BytesIO()
    picture.save(out, "PNG")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


@cache
def _scale() -> np.ndarray:
    """Return the colours of 0 to 100 %. Shape: (101, 3)."""
    from plotly.colors import sample_colorscale, unlabel_rgb

    return np.array(
        [unlabel_rgb(text) for text in sample_colorscale(ACCURACY_SCALE, list(np.linspace(0, 1, 101)))],
        dtype=np.uint8,
    )
