"""CLIP as the methods see it: frozen towers, differentiable prompts, LoRA, and the cache of encoded images."""
