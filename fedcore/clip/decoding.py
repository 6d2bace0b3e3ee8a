"""Decode the pixels of a data set, batch by batch, in threads that work ahead of the image tower.

Threads instead of processes: decoders and tensor operations release Python's lock, a data set's reader (a
closure, an open archive) needs no pickling, and no process is forked while torch's threads run. Only a few
batches are decoded ahead, which bounds memory for any number of images and threads.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from fedcore.lazy import torch

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

BATCH = 64
"""Images in every batch; the last one is filled up with zeros. Kernels choose their order of summation by the
shape of a batch, so one shape gives an image the same bits at every position, also after a resumed start."""

_AHEAD = 2
"""Batches that are decoded while one is encoded."""
_PIECE = 8
"""Images that a thread decodes at a time."""
_MAX_THREADS = 16


def default_workers(images: int) -> int:
    """Return the number of decoding threads: one per core, or 0 (no threads) for a few batches."""
    if images <= 2 * BATCH:
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _MAX_THREADS)


def batches(
    read: Callable[[int], Image.Image],
    preprocess: Callable[[Image.Image], Tensor],
    images: int,
    first: int = 0,
    workers: int | None = None,
) -> Iterator[tuple[int, Tensor]]:
    """Yield preprocessed pixels of rows ``first`` to ``images``, in order.

    A batch's memory is used again for a later one: copy it before the next one is requested.

    Args:
        read: safe to be called from several threads.
        workers: decoding threads, 0 for none; None: by the number of images.

    Shape: -> (number of images in the batch, (BATCH, 3, side, side)).
    """
    if first >= images:
        return
    workers = default_workers(images - first) if workers is None else workers
    sample = preprocess(read(first).convert("RGB"))

    def decode(buffer: Tensor, slots: range, row: int) -> None:
        for slot in slots:
            buffer[slot] = preprocess(read(row + slot).convert("RGB"))

    def buffer() -> Tensor:
        return torch.zeros((BATCH, *sample.shape), dtype=sample.dtype)

    starts = range(first, images, BATCH)
    if not workers:
        pixels = buffer()
        for start in starts:
            count = min(BATCH, images - start)
            decode(pixels, range(count), start)
            pixels[count:] = 0
            yield count, pixels
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="decode") as pool:
        waiting: deque[tuple[int, Tensor, list[Future[None]]]] = deque()

        def begin(start: int, pixels: Tensor) -> None:
            count = min(BATCH, images - start)
            pixels[count:] = 0
            pieces = [range(i, min(i + _PIECE, count)) for i in range(0, count, _PIECE)]
            waiting.append((count, pixels, [pool.submit(decode, pixels, piece, start) for piece in pieces]))

        left = iter(starts)
        try:
            for _, start in zip(range(_AHEAD + 1), left, strict=False):
                begin(start, buffer())
            while waiting:
                count, pixels, pieces = waiting.popleft()
                for piece in pieces:
                    piece.result()
                yield count, pixels
                following = next(left, None)
                if following is not None:
                    begin(following, pixels)
        finally:
            pool.shutdown(cancel_futures=True)
