"""Write ``fedcore/assets/timm.json``: the width and the pretrained tags of timm's models, known without torch.

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
    tags: dict[str, dict[str, object]] = {}
    for full in list_pretrained():
        name, _, tag = full.partition(".")
        cfg = get_pretrained_cfg(full)
        if cfg is None or not cfg.hf_hub_id or cfg.input_size[0] != 3 or len(set(cfg.input_size[1:])) > 1:
            continue
        usual = (f"timm/{full}", None)
        given = (cfg.hf_hub_id, cfg.hf_hub_filename)
        side = cfg.input_size[1]
        tags.setdefault(name, {})[tag] = [side] if given == usual else [side, *filter(None, given)]
    models = {}
    for name, of_model in tags.items():
        try:
            with torch.device("meta"), Uninitialised():
                model = timm.create_model(name)
        except Exception as error:  # noqa: BLE001 - a few need values to be built
            print(f"{name}: {type(error).__name__}: {error}")
            continue
        first = get_pretrained_cfg(name)
        ordered = sorted(of_model, key=lambda tag: tag != first.tag) if first is not None else of_model
        models[name] = [getattr(model, "head_hidden_size", model.num_features), {t: of_model[t] for t in ordered}]
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(of)}" for name, of in sorted(models.items()))
    (ASSETS / "timm.json").write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
