"""Pretraining and measuring of the embedded miniature CLIP (docs/embedded.md)."""
