"""Models from the Hugging Face hub: only the files a model needs, and its cache when the network is away."""

from __future__ import annotations

import re
from pathlib import Path

from .base import ModelError

_SIDE_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
_PREFERRED = "Q4_K_M"
_TIMEOUT = 10.0  # seconds


def download(name: str, progress: bool = True) -> Path:
    """The local path of ``org/repo``, ``org/repo:quant`` or ``org/repo/file.gguf``, fetched when it is not there yet.

    Without network a copy in the hub's cache is used. Raises ModelError.
    """
    repo, file, quant = split_name(name)
    files, snapshot = _list_files(repo)
    wanted = [file] if file else choose_files(files, quant, repo)
    if file and file not in files:
        raise ModelError(f"{repo} has no file {file!r}; {_choices(files)}")
    root = snapshot or _fetch(repo, wanted, progress)
    return root / wanted[0] if wanted[0].endswith(".gguf") else root


def split_name(name: str) -> tuple[str, str | None, str | None]:
    """(repository, file or None, quantisation or None). Raises ModelError for anything of another form."""
    match = re.fullmatch(r"([\w.-]+/[\w.-]+)(?:/([\w./-]+\.gguf)|:([\w.-]+))?", name, re.ASCII)
    if match is None or ".." in name:
        raise ModelError(
            f"{name!r} is neither a path that exists nor a repository: org/name, org/name:Q4_K_M, org/name/file.gguf"
        )
    return match[1], match[2], match[3]


def choose_files(files: list[str], quant: str | None, repo: str) -> list[str]:
    """The files that make the model: safetensors if any, unless `quant` asks for a GGUF file. Raises ModelError."""
    weights = [f for f in files if _WEIGHTS.fullmatch(f)]
    if quant is None and weights and "config.json" in files:
        return ["config.json", *weights, *(f for f in files if f in _SIDE_FILES and f != "config.json")]
    ggufs = [f for f in files if f.endswith(".gguf") and "mmproj" not in f.lower()]
    if not ggufs:
        raise ModelError(f"{repo} has neither safetensors weights with a config.json nor a .gguf file")
    hits = ggufs if len(ggufs) == 1 and quant is None else _with_quant(ggufs, quant or _PREFERRED)
    if len(hits) != 1:
        which = (
            f"{len(hits)} files match {quant or _PREFERRED!r}" if hits else f"no file matches {quant or _PREFERRED!r}"
        )
        raise ModelError(f"{which} in {repo}; {_choices(files)}")
    return hits


def _with_quant(ggufs: list[str], quant: str) -> list[str]:
    return [f for f in ggufs if re.search(rf"(^|[-_./]){re.escape(quant)}\.gguf$", f, re.IGNORECASE)]


def _choices(files: list[str]) -> str:
    ggufs = [f for f in files if f.endswith(".gguf")]
    more = f" and {len(ggufs) - 20} more" if len(ggufs) > 20 else ""
    return f"its .gguf files are {', '.join(ggufs[:20])}{more}" if ggufs else "it has no .gguf files"


def _list_files(repo: str) -> tuple[list[str], Path | None]:
    """Files of a repository; from the cache, with the snapshot's folder, when the hub cannot be reached."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        # Listing the files by their own call would retry for half a minute when there is no network.
        siblings = HfApi().model_info(repo, timeout=_TIMEOUT).siblings or []
        return [s.rfilename for s in siblings], None
    except GatedRepoError as error:
        raise ModelError(
            f"{repo} asks for a licence: accept it on the hub, then log in with `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"no repository {repo!r} on the hub (a private one needs `hf auth login`)") from error
    except Exception as error:  # the client's own errors, and those of a transport that changed between its versions
        try:
            root = Path(snapshot_download(repo, local_files_only=True))
        except (LocalEntryNotFoundError, OSError):
            raise ModelError(
                f"cannot reach the Hugging Face hub for {repo!r}, and it is not in the local cache "
                f"({_first_line(error)}); give the path of a local model"
            ) from error
        return [p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()], root


def _fetch(repo: str, files: list[str], progress: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    quiet = not progress and not are_progress_bars_disabled()
    if quiet:
        disable_progress_bars()
    try:
        return Path(snapshot_download(repo, allow_patterns=files))
    except Exception as error:  # as above, and the system's for a full disk
        raise ModelError(f"downloading {repo} failed: {_first_line(error)}; try again, or give a local path") from error
    finally:
        if quiet:
            enable_progress_bars()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
