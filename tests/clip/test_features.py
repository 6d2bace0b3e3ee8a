from dataclasses import replace

import pytest
import torch
from PIL import Image

from fedcore.clip import encodings
from fedcore.errors import FedLensError
from tests.support.clip import encoded, noise, pixel_backbone


@pytest.mark.parametrize("reads", ["embedding", "regions", "layer:2", "patches", "pixels"])
def test_rows_follow_their_images_and_the_second_call_reads_no_image(tiny_backbone, tmp_path, reads):
    backbone, images = pixel_backbone(tiny_backbone), noise()
    first = encoded(backbone, images, reads, tmp_path)
    for row in (0, 63, 64, 69):  # both sides of a batch boundary
        pixels = backbone.preprocess(images.read(row))[None]
        one = {
            "embedding": backbone.embed_images(pixels),
            "layer:2": backbone.image.activations(pixels, 2),
            "regions": backbone.embed_regions(pixels),
            "patches": backbone.image.patches(pixels),
            "pixels": pixels,
        }[reads]
        torch.testing.assert_close(first[row], one[0], rtol=1e-5, atol=1e-5)

    def refuse(i: int) -> Image.Image:
        raise AssertionError("an image was read although its encoding is cached")

    again = encoded(backbone, noise(read=refuse), reads, tmp_path)
    assert torch.equal(first, again)


def test_a_crash_leaves_no_cache_file(tiny_backbone, tmp_path):
    calls = []

    def fail_late(i: int) -> Image.Image:
        calls.append(i)
        if i == 65:
            raise OSError("disk gone")
        return Image.new("RGB", (16, 16))

    backbone = pixel_backbone(tiny_backbone)
    with pytest.raises(OSError, match="disk gone"):
        encoded(backbone, noise(read=fail_late), "embedding", tmp_path)
    assert set(calls) == set(range(66))
    assert not list(tmp_path.glob("*.npy"))
    assert encoded(backbone, noise(), "embedding", tmp_path).shape == (70, 16)


def test_the_cache_tells_data_sets_backbones_and_depths_apart(tiny_backbone, tmp_path):
    backbone, images = pixel_backbone(tiny_backbone), noise()
    paths = {
        encodings.cache_path(tmp_path, backbone, images, "embedding"),
        encodings.cache_path(tmp_path, backbone, images, "layer:1"),
        encodings.cache_path(tmp_path, backbone, images, "patches"),
        encodings.cache_path(tmp_path, replace(backbone, fingerprint="other"), images, "embedding"),
        encodings.cache_path(tmp_path, backbone, replace(images, fingerprint="v2"), "embedding"),
    }
    assert len(paths) == 5


def test_an_unknown_encoding_is_refused():
    with pytest.raises(FedLensError, match="'layer:x'"):
        encodings.parse_reads("layer:x")
