"""The files that weights are read from, and whether they have changed since. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedcore.cache.integrity import file_digest, stat_identity
from fedcore.clip import tags
from fedcore.clip.specs import weights_source


@dataclass(frozen=True)
class WeightsFiles:
    """The files of a backbone's weights, as they were when they were read.

    Attributes:
        digest: of the bytes of all of them.
    """

    paths: tuple[Path, ...] = ()
    seen: tuple[tuple[int, ...] | None, ...] = ()
    digest: str = ""

    @classmethod
    def of(cls, name: str, pretrained: str | None) -> WeightsFiles:
        """Read the files of a backbone's weights; none for a tag that is not on this machine.

        Raises:
            FedLensError: as ``weights_source``.
        """
        source = weights_source(name, pretrained)
        cached = tags.cached(name, source) if isinstance(source, str) else None
        paths = source if isinstance(source, tuple) else (cached,) if cached is not None else ()
        seen = tuple(map(stat_identity, paths))
        return cls(paths, seen, _digest(paths))

    def changed(self) -> bool:
        """Return whether any file holds other bytes now; they are read only where size or times differ."""
        if tuple(map(stat_identity, self.paths)) == self.seen:
            return False
        return not all(path.is_file() for path in self.paths) or _digest(self.paths) != self.digest


def _digest(paths: tuple[Path, ...]) -> str:
    return "+".join(map(file_digest, paths))
