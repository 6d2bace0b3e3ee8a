"""Our towers against open_clip's own forward passes, in float64."""

import open_clip
import pytest
import torch

from fedcore.base.errors import FedLensError
from fedcore.base.seeds import torch_generator
from fedcore.clip import adapters, prompts, towers
from fedcore.clip.adapters import Lora, LowerLayers, init_lora
from fedcore.clip.prompts import class_suffix, encode_class_context, encode_context, encode_texts
from fedcore.clip.towers import ImageTower, TextTower, resnet_regions
from tests.support.tiny import tiny_backbone

TEXTS = ["a photo of a cat.", "a much longer sentence about a snow owl that sits on a fire engine", "x"]


def _reference(backbone, embeddings: torch.Tensor, eot: int) -> torch.Tensor:
    """One sequence through open_clip's own modules, padded to the full 77 tokens with junk after [EOT]."""
    model = backbone.model
    x = torch.cat([embeddings, torch.ones(77 - len(embeddings), embeddings.shape[1], dtype=embeddings.dtype)])
    x = model.transformer((x + model.positional_embedding)[None], attn_mask=model.attn_mask)
    return model.ln_final(x)[0, eot] @ model.text_projection


@pytest.mark.parametrize("embed_dim", [16, 20])
def test_plain_texts_equal_open_clip(embed_dim):
    backbone = tiny_backbone(embed_dim=embed_dim)
    expected = backbone.model.encode_text(backbone.tokenize(TEXTS))
    torch.testing.assert_close(encode_texts(backbone, TEXTS), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("before", [0, 2, 5])
def test_a_context_around_class_names_equals_open_clip(before):
    backbone = tiny_backbone()
    classes = ("cat", "snow owl on a fire engine", "dr.")  # the last one's full stop joins that of the ending
    context = torch.randn(2, 5, 16, dtype=torch.float64, generator=torch_generator(0, "context"))
    suffix, names = class_suffix(backbone, classes), prompts.name_tokens(backbone, classes)
    found = prompts.encode_around(backbone, context, suffix, names, before)
    for k, name in enumerate(classes):
        ids = backbone.tokenize([f"{name}."])[0]
        alone = int(backbone.tokenize([name])[0].argmax()) - 1
        words = backbone.model.token_embedding(ids)
        for client, vectors in enumerate(context):
            parts = words[:1], vectors[:before], words[1 : alone + 1], vectors[before:], words[alone + 1 :]
            sequence = torch.cat(parts)[:77]
            expected = _reference(backbone, sequence, int(ids.argmax()) + 5)
            torch.testing.assert_close(found[client, k], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("start", [0, 3])
def test_image_tail_equals_open_clip(start):
    backbone = tiny_backbone()
    pixels = torch.randn(5, 3, 16, 16, dtype=torch.float64, generator=torch_generator(0, "pixels"))
    hidden = backbone.image.activations(pixels, start)
    ours = backbone.image.tail(hidden[None], start)[0]
    torch.testing.assert_close(ours, backbone.model.encode_image(pixels), rtol=0, atol=1e-12)


def test_patches_with_embeddings_of_each_clients_own_equal_patched_open_clip():
    backbone = tiny_backbone()
    pixels = torch.randn(5, 3, 16, 16, dtype=torch.float64, generator=torch_generator(0, "pixels"))
    patches, tower = backbone.image.patches(pixels), backbone.image
    assert patches.shape == (5, 4, 24)
    visual = backbone.model.visual
    embeddings = (visual.class_embedding[None], visual.positional_embedding[None])
    hidden = tower.embed(patches[None], *embeddings)
    torch.testing.assert_close(hidden[0], tower.activations(pixels, 0), rtol=0, atol=1e-12)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(2, *shape, dtype=torch.float64, generator=torch_generator(0, "draw", *shape))

    class_tokens, positions, projections = draw(24), draw(5, 24), draw(24, 16)
    a, b = draw(3, 3, 2, 24), draw(3, 3, 24, 2)
    hidden = tower.embed(patches.expand(2, -1, -1, -1), class_tokens, positions)
    ours = tower.tail(hidden, 0, Lora(a, b, 0.25, 1), projections)  # layer 0 runs, but is not adapted
    for c in range(2):
        patched = tiny_backbone().model
        with torch.no_grad():
            patched.visual.class_embedding.copy_(class_tokens[c])
            patched.visual.positional_embedding.copy_(positions[c])
            patched.visual.proj.copy_(projections[c])
            for i, block in enumerate(patched.visual.transformer.resblocks[1:]):
                block.attn.in_proj_weight += 0.25 * (b[c, i] @ a[c, i]).flatten(0, 1)
        torch.testing.assert_close(ours[c], patched.encode_image(pixels), rtol=0, atol=1e-12)


@pytest.mark.parametrize("alike", [0, 1, 3])
def test_layers_that_all_clients_share_see_an_image_once(monkeypatch, alike):
    tower = tiny_backbone().image
    layers, clients = len(tower.blocks), 3
    assert layers == 4
    generator = torch_generator(0, "shared layers")
    hidden = torch.randn(1, 5, 5, 24, dtype=torch.float64, generator=generator).expand(clients, -1, -1, -1)
    a, b = (
        torch.randn(clients, 3, 3, *size, dtype=torch.float64, generator=generator)
        for size in ((2, 24), (24, 2))
    )
    a[:, :alike], b[:, :alike] = a[:1, :alike], b[:1, :alike]
    lora = Lora(a, b, 0.25, 1)
    seen = []
    layer = tower._layer

    def counted(index: int, x: torch.Tensor, *given: object) -> torch.Tensor:
        seen.append((index, len(x)))
        return layer(index, x, *given)

    monkeypatch.setattr(tower, "_layer", counted)
    with torch.no_grad():
        ours = tower.tail(hidden, 1, lora)
        assert seen == [(i, 1 if i < 1 + alike else clients) for i in range(1, layers)]
        plain = tower.tail(hidden.clone(), 1, lora)
    assert [count for _, count in seen[layers - 1 :]] == [clients] * (layers - 1)
    assert ours.shape == plain.shape == (clients, 5, 16)
    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)
    single = [tower.tail(hidden[i : i + 1], 1, Lora(a[i : i + 1], b[i : i + 1], 0.25, 1)) for i in range(3)]
    torch.testing.assert_close(ours, torch.cat(single), rtol=0, atol=1e-12)
    if alike < 3:
        assert (ours[0] - ours[1]).abs().max() > 1e-3


def test_lower_layers_that_models_share_see_an_image_once_with_equal_bits():
    visual = open_clip.transformer.VisionTransformer(48, 8, 128, 4, 4, 4.0, output_dim=16).eval()
    tower, generator = ImageTower(visual.requires_grad_(False)), torch_generator(0, "lower layers")
    images = torch.randn(9, 37, 128, generator=generator)
    a, b = (torch.randn(3, 3, 3, *size, generator=generator) / 10 for size in ((4, 128), (128, 4)))
    a[:, :2], b[:, :2] = a[:1, :2], b[:1, :2]
    lora, seen = Lora(a, b, 0.25, 1), []

    def counted(hidden: torch.Tensor, *given: object) -> torch.Tensor:
        seen.append(hidden.shape[1])
        return tower.between(hidden, *given)

    lower = LowerLayers(counted, 1, 3)
    shared, apart = images[2:7][None].expand(3, -1, -1, -1), images[[0, 7, 8]][:, None]
    with torch.no_grad():
        for hidden, of, new in (
            (images[None, :6], lora.first, [6, 1, 3]),  # the first pass is compared with smaller ones
            (shared, lora, [1]),
            (apart, lora, [2]),
        ):
            above = lower(hidden, of)
            if not lower.apart:
                pytest.skip("on this processor an image's bits depend on the images beside it")
            assert torch.equal(above, torch.cat([tower.between(x, 1, 3, of.first) for x in hidden.split(1)]))
            assert seen == new
            seen.clear()
        b[1, 1] += 1
        assert lower(shared, lora) is None, "the models differ in the second layer"
        assert not seen
        b[1, 1] = b[0, 1]
        b[:, 0] += 1
        assert torch.equal(tower.tail(lower(shared, lora), 3, lora), tower.tail(shared, 1, lora))
        assert lower(shared.double(), lora) is None
    assert seen == [5], "other models have other layers"


def test_shared_layers_keep_each_clients_gradient_apart():
    tower = tiny_backbone().image
    generator = torch_generator(0, "gradients")
    hidden = torch.randn(1, 5, 5, 24, dtype=torch.float64, generator=generator).expand(2, -1, -1, -1)
    a = torch.randn(1, 3, 3, 2, 24, dtype=torch.float64, generator=generator).repeat(2, 1, 1, 1, 1)
    b = torch.randn(1, 3, 3, 24, 2, dtype=torch.float64, generator=generator).repeat(2, 1, 1, 1, 1)
    out = tower.tail(hidden, 1, Lora(a.requires_grad_(), b, 0.25, 1))
    (gradient,) = torch.autograd.grad(out[0].sum(), a)
    assert gradient[0].abs().max() > 1e-6
    assert gradient[1].abs().max() == 0


def test_texts_with_other_embeddings_equal_patched_open_clip():
    backbone, patched = tiny_backbone(), tiny_backbone().model
    table = torch.randn(49408, 16, dtype=torch.float64, generator=torch_generator(0, "table"))
    positions = torch.randn(77, 16, dtype=torch.float64, generator=torch_generator(0, "positions"))
    with torch.no_grad():
        patched.token_embedding.weight.copy_(table)
        patched.positional_embedding.copy_(positions)
    expected = patched.encode_text(backbone.tokenize(TEXTS))
    ours = encode_texts(backbone, TEXTS, embed=lambda ids: table[ids], positions=positions)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)


def test_contexts_of_different_lengths_in_one_batch_equal_single_sequences():
    backbone = tiny_backbone()
    classes = ("cat", "snow owl", "very long fire engine of the city")
    suffix = class_suffix(backbone, classes)
    lengths = torch.tensor([4, 64])
    context = torch.randn(2, 64, 16, dtype=torch.float64, generator=torch_generator(0, "context"))
    ours = encode_context(backbone, context, suffix, lengths)
    sos = backbone.text.embed(torch.tensor([49406]))
    for c in range(2):
        for k in range(3):
            length = int(lengths[c])
            sequence = torch.cat([sos, context[c, :length], suffix.embeddings[k]])
            eot = 1 + length + int(suffix.eot[k])
            torch.testing.assert_close(ours[c, k], _reference(backbone, sequence, eot), rtol=0, atol=1e-12)


def test_class_contexts_equal_single_sequences():
    backbone = tiny_backbone()
    suffix = class_suffix(backbone, ("cat", "snow owl"), "a photo of a {}.")
    context = torch.randn(3, 2, 5, 16, dtype=torch.float64, generator=torch_generator(0, "context"))
    ours = encode_class_context(backbone, context, suffix)
    sos = backbone.text.embed(torch.tensor([49406]))
    for c in range(3):
        for k in range(2):
            sequence = torch.cat([sos, context[c, k], suffix.embeddings[k]])
            expected = _reference(backbone, sequence, 6 + int(suffix.eot[k]))
            torch.testing.assert_close(ours[c, k], expected, rtol=0, atol=1e-12)


def test_a_context_that_does_not_fit_names_the_class_and_the_limit():
    backbone = tiny_backbone()
    suffix = class_suffix(backbone, ("cat", "very long fire engine of the city"))
    with pytest.raises(FedLensError, match=r"class 'very long fire engine of the city'.*use at most 67"):
        encode_context(backbone, torch.zeros(1, 68, 16, dtype=torch.float64), suffix)


def test_a_template_that_clip_would_cut_is_refused():
    with pytest.raises(FedLensError, match="needs 1[0-9]+ tokens"):
        encode_texts(tiny_backbone(), ["word " * 100])


def test_zero_lora_changes_nothing_and_lora_equals_patched_weights():
    backbone, patched = tiny_backbone(), tiny_backbone()
    pixels = torch.randn(4, 3, 16, 16, dtype=torch.float64, generator=torch_generator(0, "pixels"))
    hidden = backbone.image.activations(pixels, 1)
    a, b = init_lora(3, 24, 2, torch_generator(0, "lora"), torch.float64)
    still = backbone.image.tail(hidden[None], 1, Lora(a[None], b[None], 0.25, 1))
    assert torch.equal(still, backbone.image.tail(hidden[None], 1))
    b = torch.randn(b.shape, dtype=torch.float64, generator=torch_generator(0, "b"))
    moved = backbone.image.tail(hidden[None], 1, Lora(a[None], b[None], 0.25, 1))
    with torch.no_grad():
        for i, block in enumerate(patched.model.visual.transformer.resblocks[1:]):
            block.attn.in_proj_weight += 0.25 * (b[i] @ a[i]).flatten(0, 1)
    torch.testing.assert_close(moved[0], patched.model.encode_image(pixels), rtol=0, atol=1e-12)


@pytest.mark.parametrize("lengths", [None, torch.tensor([3, 6])])
def test_attention_at_once_as_on_a_gpu_equals_attention_in_parts(monkeypatch, lengths):
    text, classes, dtype = tiny_backbone(text_layers=2).text, 4, torch.float64
    draw = torch_generator(0, "attention")
    prefix = torch.randn(2, 6, 16, dtype=dtype, generator=draw).requires_grad_()
    suffix = torch.randn(1, classes, 5, 16, dtype=dtype, generator=draw)
    eot = torch.tensor([4, 2, 1, 3])
    found, seen, attend = [], [], towers._attend
    for way in (attend, towers._attend_at_once):
        monkeypatch.setattr(towers, "_attend", lambda *given, way=way: seen.append(way) or way(*given))
        for packing in (None, towers.Packing(eot, 5)):
            seen.clear()
            features = text.encode(prefix, suffix, eot, lengths, packing=packing)
            (gradient,) = torch.autograd.grad(features.square().sum(), prefix)
            assert seen == [way] * 2
            found.append((features, gradient))
    for ours in found[1:]:
        torch.testing.assert_close(ours, found[0], rtol=0, atol=1e-12)
    assert found[0][1][:, 2].abs().min() > 0 and (lengths is None or not found[0][1][0, 3:].any())


@pytest.mark.parametrize("scale", [0.25, 0.3])
def test_lora_is_scaled_with_equal_bits_wherever_it_is_scaled(scale):
    draw = torch_generator(0, "lora")
    a, b, x = (torch.randn(2, *size, generator=draw) for size in ((1, 3, 4, 24), (1, 3, 24, 4), (3, 5, 24)))
    assert torch.equal(Lora(a, b, scale, 0).delta(0, x), scale * Lora(a, b, 1.0, 0).delta(0, x))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 3e-6)])
@pytest.mark.parametrize("updates", ["none", "low-rank", "with residual"])
def test_a_class_token_that_reads_without_keys_and_values_has_their_result_and_gradients(
    dtype, tolerance, updates
):
    tower, draw = tiny_backbone(dtype).image, torch_generator(0, "one query")
    layer, (clients, width) = len(tower.blocks) - 1, (2, 24)
    block = tower.blocks[layer]

    def drawn(*size: int) -> torch.Tensor:
        return torch.randn(*size, dtype=torch.float64, generator=draw).to(dtype)

    with torch.no_grad():  # open_clip begins with biases of zero
        block.attn.in_proj_bias.copy_(drawn(3 * width))
    leaves = [drawn(clients, 3, 5, width), drawn(clients, 1, 3, 2, width), drawn(clients, 1, 3, width, 2)]
    residual = (drawn(1, 1, 3, width, width) / 10).expand(clients, -1, -1, -1, -1)
    leaves = [leaf.requires_grad_() for leaf in leaves[: 1 if updates == "none" else 3]]
    rest = residual if updates == "with residual" else None
    lora = None if updates == "none" else Lora(*leaves[1:], 0.3, layer, rest)
    q, k, v = (t.flatten(0, 1).transpose(1, 2) for t in towers._project(block, layer, leaves[0], lora))
    expected = towers._attention(q[:, :, :1], k, v).transpose(1, 2).unflatten(0, (clients, 3))
    found, weight = towers._read_by_one(block, layer, leaves[0], lora), drawn(*expected.shape)
    for ours, theirs in zip(
        (found, *torch.autograd.grad((found * weight).sum(), leaves)),
        (expected, *torch.autograd.grad((expected * weight).sum(), leaves)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * theirs.abs().max().item())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 3e-6)])
@pytest.mark.parametrize("residual", [False, True])
def test_updates_merged_into_the_weights_of_one_model_have_the_embeddings_of_added_ones(
    monkeypatch, dtype, tolerance, residual
):
    tower, draw, merged = tiny_backbone(dtype).image, torch_generator(0, "merged"), []
    sizes = (1, 5, 5, 24), (1, 3, 3, 4, 24), (1, 3, 3, 24, 4), (1, 3, 3, 24, 24)
    hidden, a, b, rest = (torch.randn(*s, dtype=torch.float64, generator=draw).to(dtype) for s in sizes)
    lora, merge = Lora(a, b, 0.3, 1, rest / 10 if residual else None), Lora.merged
    monkeypatch.setattr(Lora, "merged", lambda *given: merged.append(given[1]) or merge(*given))
    ours = tower.tail(hidden, 0, lora)
    assert merged == [0, 1, 2], "the last layer reads its class token with the factors"
    b.requires_grad_()
    added = tower.tail(hidden, 0, lora).detach()
    assert len(merged) == 3, "autograd follows the factors"
    torch.testing.assert_close(ours, added, rtol=tolerance, atol=tolerance * added.abs().max().item())


@pytest.mark.parametrize(("rank", "layers"), [(4, 1), (4, 2), (5, 2), (6, 2), (24, 3)])
def test_lora_that_is_added_to_q_k_and_v_apart_has_the_gradients_of_a_sum_to_the_last_bit(
    monkeypatch, rank, layers
):
    draw, found, calls = torch_generator(0, "lora"), [], []
    a, b = (torch.randn(3, layers, 3, *size, generator=draw) for size in ((rank, 48), (48, rank)))
    x, projected, weight = (torch.randn(3, 40, 5, width, generator=draw) for width in (48, 144, 144))
    baddbmm = adapters.torch.baddbmm
    monkeypatch.setattr(adapters.torch, "baddbmm", lambda *given: calls.append(rank) or baddbmm(*given))
    for apart in (True, False):
        leaves = [t.clone().requires_grad_() for t in (a, b, x, projected)]
        lora = Lora(leaves[0], leaves[1], 0.25, 0)
        if apart:
            out = torch.cat(lora.added(layers - 1, *leaves[2:]), -1)
        else:
            out = (leaves[3].unflatten(-1, (3, -1)) + lora.delta(layers - 1, leaves[2])).flatten(-2)
        found.append([out, *torch.autograd.grad((out * weight).sum(), leaves)])
    assert all(map(torch.equal, *found))
    assert calls == ([rank] * 3 if rank in (4, 24) else [])


def test_lora_start_is_kaiming_uniform_and_the_product_is_zero():
    a, b = init_lora(2, 100, 4, torch_generator(3, "lora"), torch.float32)
    assert a.shape == (2, 3, 4, 100) and b.shape == (2, 3, 100, 4)
    assert a.abs().max() <= 100**-0.5 and a.abs().max() > 0.09
    assert not b.any()


def test_a_resnet_has_no_tail():
    with pytest.raises(FedLensError, match="choose a ViT"):
        _ = tiny_backbone(vision="resnet").image


def test_padding_is_left_out_where_that_pays(monkeypatch):
    backbone = tiny_backbone()
    suffix = class_suffix(backbone, ("x", "a much longer name of a class", "snow owl"))
    encode, packed = TextTower.encode, []

    def recorded(*args, packing=None, **rest):
        packed.append(packing)
        return encode(*args, packing=packing, **rest)

    monkeypatch.setattr(TextTower, "encode", recorded)
    context, of_class = torch.randn(60, 3, 16).double(), torch.randn(60, 3, 3, 16).double()
    for function, value in ((encode_context, context), (encode_class_context, of_class)):
        value.requires_grad_()
        found = [function(backbone, value, suffix)]
        with monkeypatch.context() as patch:
            patch.setattr(towers, "_PACKED_SHARE", 0.0)
            found.append(function(backbone, value, suffix))
        assert packed[-2] is not None and packed[-1] is None
        torch.testing.assert_close(found[0], found[1], atol=1e-12, rtol=0)
        weights = torch.randn_like(found[0])
        gradients = [torch.autograd.grad((f * weights).sum(), value)[0] for f in found]
        torch.testing.assert_close(gradients[0], gradients[1], atol=1e-11, rtol=0)
    encode_context(backbone, context[:1], suffix)
    assert packed[-1] is None  # too few tokens to gain by it
    encode_context(backbone, context, class_suffix(backbone, ("cat", "dog", "owl")))
    assert packed[-1] is None  # no padding


def test_regions_of_a_vit_are_the_projected_tokens_of_open_clip():
    backbone = tiny_backbone()
    pixels = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    visual = backbone.model.visual
    visual.output_tokens = True
    _, tokens = visual(pixels)
    torch.testing.assert_close(backbone.embed_regions(pixels), tokens @ visual.proj)


def test_regions_of_a_resnet_are_attention_pooling_asked_at_each_position():
    backbone = tiny_backbone(vision="resnet")
    visual = backbone.model.visual
    feature_map = torch.randn(2, visual.attnpool.q_proj.in_features, 1, 1, dtype=torch.float64)
    pool = visual.attnpool
    pool.positional_embedding.data[1] = pool.positional_embedding[0]
    # of a single position the mean is that position: both tokens are the same query over the same keys
    torch.testing.assert_close(resnet_regions(visual, feature_map)[:, 0], pool(feature_map))
    wide = torch.randn(2, feature_map.shape[1], 2, 3, dtype=torch.float64)
    pool.positional_embedding.data = torch.randn(7, wide.shape[1], dtype=torch.float64)
    tokens = wide.flatten(2).transpose(1, 2)
    tokens = torch.cat([tokens.mean(1, keepdim=True), tokens], 1) + pool.positional_embedding
    q, k, v = pool.q_proj(tokens), pool.k_proj(tokens), pool.v_proj(tokens)
    size = q.shape[-1] // pool.num_heads
    expected = torch.zeros(2, 6, q.shape[-1], dtype=torch.float64)
    for image in range(2):
        for position in range(6):
            for head in range(pool.num_heads):
                part = slice(head * size, (head + 1) * size)
                scores = k[image, :, part] @ q[image, position + 1, part] / size**0.5
                expected[image, position, part] = scores.softmax(0) @ v[image, :, part]
    torch.testing.assert_close(resnet_regions(visual, wide), pool.c_proj(expected))
