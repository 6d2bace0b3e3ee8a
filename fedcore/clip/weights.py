"""Files of weights: those of unknown origin are read as tensors only, no code in them is executed.

The files of the embedded miniature CLIP, in ``fedcore/assets``, hold only the token rows of words that occur
in the pretraining captions; the full table that open_clip expects is rebuilt here. ``docs/embedded.md`` says
what these weights are good for.
"""

import pickle
import zipfile
from pathlib import Path
from typing import IO, Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedcore.base.errors import FedLensError, first_line
from fedcore.base.files import ASSETS
from fedcore.base.lazy import open_clip
from fedcore.clip.specs import MINI_MODELS

_FIELD = "backbone.pretrained"
_WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Keys under which training scripts save the weights next to the optimiser's state."""
_PREFIXES = ("module.", "_orig_mod.")
"""Prefixes that DistributedDataParallel and torch.compile put before every name."""
_NOT_WEIGHTS = ("input_resolution", "context_length", "vocab_size", "attn_mask")
"""Tensors in OpenAI's archives that are settings, or derived from them."""


def is_archive(path: Path) -> bool:
    """Return whether a file is a TorchScript archive (a zip file with code), as OpenAI's models are."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any("/code/" in entry for entry in archive.namelist())


def read(path: Path) -> dict[str, Tensor]:
    """Read the state dict of a .safetensors file, a torch checkpoint or an OpenAI archive."""
    try:
        if path.suffix == ".safetensors":
            content: Any = load_file(path)
        elif is_archive(path):
            content = _read_archive(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise FedLensError(
            f"{path} is not a plain weights file: it is damaged, or holds Python objects, which could run "
            "code and are refused; save the model with torch.save(model.state_dict(), ...) or as "
            ".safetensors",
            _FIELD,
        ) from error
    except FedLensError:
        raise
    except Exception as error:  # safetensors and torch raise anything from EOFError to their own types
        raise FedLensError(
            f"cannot read the weights file {path} ({first_line(error)}); copy it again", _FIELD
        ) from error
    for wrapper in _WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
            break
    if (
        not isinstance(content, dict)
        or not content
        or not all(isinstance(v, Tensor) for v in content.values())
    ):
        raise FedLensError(
            f"{path} holds no state dict; expected tensors by name, by themselves or under "
            f"{', '.join(map(repr, _WRAPPERS))}",
            _FIELD,
        )
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in content):
            content = {name.removeprefix(prefix): value for name, value in content.items()}
    return {n: v for n, v in content.items() if n.rpartition(".")[2] not in _NOT_WEIGHTS}


class Uninitialised(TorchFunctionMode):
    """Creates modules without drawing initial weights, which would take most of the time.

    Their parameters hold arbitrary values until weights are loaded into all of them.
    """

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        draws = func in (torch.Tensor.normal_, torch.Tensor.uniform_)
        if draws or getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def fit(model: torch.nn.Module, state: dict[str, Tensor], name: str, path: Path) -> None:
    """Load a state dict into an open_clip model; refuse the first tensor that does not fit."""
    from open_clip.convert import convert_state_dict
    from open_clip.model import convert_to_custom_text_state_dict

    state = convert_state_dict(model, state)  # MobileCLIP's own names
    target = model.state_dict()
    if "positional_embedding" in state and "positional_embedding" not in target:
        state = convert_to_custom_text_state_dict(state)
    for scalar in ("logit_scale", "logit_bias"):  # some files keep it as a vector of one
        if scalar in state and scalar in target and state[scalar].numel() == 1:
            state[scalar] = state[scalar].reshape(target[scalar].shape)
    wrong = next((key for key in target if key not in state or state[key].shape != target[key].shape), None)
    extra = next((key for key in state if key not in target), None)
    if wrong is not None and wrong in state:
        what = f"'{wrong}' is {_sizes(state[wrong])} in the file, {_sizes(target[wrong])} in the model"
    elif wrong is not None:
        what = f"the file has no '{wrong}'"
    elif extra is not None:
        what = f"the model has no '{extra}'"
    else:
        model.load_state_dict(state)
        return
    raise FedLensError(
        f"{path} does not hold the weights of {name}: {what}; name the model that it belongs to", _FIELD
    )


def _sizes(value: Tensor) -> str:
    return " x ".join(map(str, value.shape)) or "one number"


class _Module:
    """Stands for any module class of an archive; keeps its attributes and never loads its code."""

    def __setstate__(self, state: object) -> None:
        self.attributes: dict[str, Any] = state if isinstance(state, dict) else {}


class _ArchiveUnpickler(pickle.Unpickler):
    """Reads ``data.pkl`` of a TorchScript archive: modules as plain objects with their tensors."""

    def __init__(self, file: IO[bytes], archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(file)
        self._archive, self._root = archive, root

    def find_class(self, module: str, name: str) -> Any:
        """Allow only the classes that such archives need; every TorchScript class becomes ``_Module``."""
        if module.startswith("__torch__"):
            return _Module
        allowed = {
            ("torch._utils", "_rebuild_tensor_v2"): lambda storage, offset, size, stride, *_: (
                torch.as_strided(storage, size, stride, offset)
            ),
            ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
            ("collections", "OrderedDict"): dict,
        }
        if (module, name) in allowed:
            return allowed[module, name]
        if module == "torch.jit._pickle" and name.startswith(("build_", "restore_type_tag")):
            return lambda value, *_: value
        if module == "torch" and name.endswith("Storage"):
            return name
        raise pickle.UnpicklingError(f"{module}.{name} in a weights file")

    def persistent_load(self, pid: Any) -> Tensor:
        """Load one storage; ``pid`` is ("storage", kind, file name, device, number of elements)."""
        _, kind, key, _, _ = pid
        dtype = _STORAGES.get(kind)
        if dtype is None:
            raise pickle.UnpicklingError(f"a {kind} in a weights file")
        content = bytearray(self._archive.read(f"{self._root}/data/{key}"))
        return torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)


_STORAGES = {
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "BoolStorage": torch.bool,
}


def _read_archive(path: Path) -> dict[str, Tensor]:
    """Read every tensor of a TorchScript archive by its dotted name, without ``torch.jit.load``.

    ``torch.load(weights_only=True)`` cannot read such archives, and ``torch.jit.load`` may run code in them.
    """
    with zipfile.ZipFile(path) as archive:
        root = next(n for n in archive.namelist() if n.endswith("/data.pkl")).removesuffix("/data.pkl")
        with archive.open(f"{root}/data.pkl") as file:
            top = _ArchiveUnpickler(file, archive, root).load()
    tensors: dict[str, Tensor] = {}

    def collect(module: _Module, prefix: str) -> None:
        for name, value in module.attributes.items():
            if isinstance(value, _Module):
                collect(value, f"{prefix}{name}.")
            elif isinstance(value, Tensor):
                tensors[prefix + name] = value

    if not isinstance(top, _Module):
        raise FedLensError(f"{path} is an archive without a module; give the file as OpenAI ships it", _FIELD)
    collect(top, "")
    return tensors


TEXT_FILE = "mini-text.safetensors"
_VOCABULARY = 49_408
_UNSEEN_SEED, _UNSEEN_STD = 77, 0.02  # rows of words in no caption are drawn as open_clip initialises them


def register_embedded() -> None:
    """Register the miniature models with open_clip; further calls do nothing."""
    if MINI_MODELS[0] not in open_clip().list_models():
        for name in MINI_MODELS:
            open_clip().add_model_config(ASSETS / f"{name}.json")


def embedded_state_dict(name: str) -> dict[str, Tensor]:
    """Return the full float32 state dict of ``open_clip.create_model(name)``."""
    state: dict[str, Tensor] = {}
    for file in (TEXT_FILE, f"{name}.safetensors"):
        state |= load_file(ASSETS / file)
    ids, rows = state.pop("token_ids").long(), state.pop("token_rows").float()
    generator = torch.Generator().manual_seed(_UNSEEN_SEED)
    table = torch.randn(_VOCABULARY, rows.shape[1], generator=generator) * _UNSEEN_STD
    table[ids] = rows
    # BatchNorm counts batches in int64; everything else is stored in half precision and computed in single
    full = {k: v.float() if v.is_floating_point() else v for k, v in state.items()}
    return full | {"token_embedding.weight": table}
