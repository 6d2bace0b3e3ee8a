"""CLIP as the methods see it: frozen towers, differentiable prompts, LoRA, cached encodings."""
