"""Class names behind one learned prefix through a frozen text tower, with a backward pass written by hand."""

from fedcore.clip.prefixed.layout import Layout
from fedcore.clip.prefixed.tower import encode, pays

__all__ = ["Layout", "encode", "pays"]
