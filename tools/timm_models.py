"""Write ``fedcore/assets/timm.json``: the width and the tags of timm's models, known without torch.

python -m tools.timm_models

Run it with the newest timm that FedLens is tested with. It takes about a quarter of an hour, since the width
of a model is known only when it is built (without memory for its weights). A model is an encoder of FedLens
if it reads square RGB images and its tags are on Hugging Face.
"""

import json

import timm
import torch
from timm.models import get_pretrained_cfg, list_pretrained

from fedcore.base.files import ASSETS
from fedcore.clip.weights import Uninitialised


def main() -> None:
    """Write the table."""
    tags: dict[str, dict[str, list[int | str]]] = {}
    for full in list_pretrained():
        name, _, tag = full.partition(".")
        cfg = get_pretrained_cfg(full)
        if cfg is None or not cfg.hf_hub_id or cfg.input_size[0] != 3 or len(set(cfg.input_size[1:])) > 1:
            continue
        of_tag = [cfg.input_size[1], cfg.hf_hub_id, cfg.hf_hub_filename or ""]
        tags.setdefault(name, {})[tag] = of_tag
    models = {}
    for name, of_model in tags.items():
        try:
            with torch.device("meta"), Uninitialised():
                model = timm.create_model(name)
        except Exception as error:  # noqa: BLE001 - a few need values to be built
            print(f"{name}: {type(error).__name__}: {error}")
            continue
        first = get_pretrained_cfg(name)
        ordered = sorted(of_model, key=lambda tag: first is None or tag != first.tag)
        width = getattr(model, "head_hidden_size", model.num_features)
        models[name] = [width, {tag: of_model[tag] for tag in ordered}]
    (ASSETS / "timm.json").write_text(json.dumps(models, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
