"""Where FedLens' own files are: package assets, and the checkout around the package."""

from pathlib import Path

ASSETS = Path(__file__).resolve().parent / "assets"
PROJECT = Path(__file__).resolve().parent.parent
