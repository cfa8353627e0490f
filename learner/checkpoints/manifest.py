"""The manifest of a checkpoint: size and digest of every file, signed (HMAC-SHA256) with the secret in
RUN/secret, which only its owner can read. DeepSpeed's state contains pickles, and loading a pickle executes
code: nothing is loaded before signature and checksums were verified."""

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from hora_rl.common.errors import RunError
from hora_rl.common.files import kept_secret, replace_text
from hora_rl.common.weights.weight_file import digest_of

NAME, SECRET = "manifest.json", "secret"
SECRET_BYTES = 32


class Refused(ValueError):
    """A checkpoint does not match its manifest; `str` names the file and the reason."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Files of a checkpoint of `run` after `step` steps on `world` ranks: [bytes, digest] by path."""

    run: str
    step: int
    world: int
    files: Mapping[str, tuple[int, str]]

    def write(self, folder: Path, secret: bytes) -> None:
        text = _text(asdict(self))
        replace_text(folder / NAME, json.dumps({**json.loads(text), "hmac": _sign(text, secret)}, indent=1))


def read_manifest(folder: Path, secret: bytes, run: str, step: int) -> Manifest:
    """The manifest of `folder`, after checking that its files exist with the right sizes. Raises Refused if
    the manifest is not signed with `secret` for this run and step, or if a file is missing, unknown, or of
    another size."""
    manifest = _signed(folder / NAME, secret)
    if (manifest.run, manifest.step) != (run, step):
        raise Refused(f"{NAME} is of run {manifest.run!r}, step {manifest.step}")
    there = {str(p.relative_to(folder)): p.stat().st_size for p in folder.rglob("*") if p.is_file()}
    there.pop(NAME)
    for name in sorted(there.keys() ^ manifest.files.keys()):
        raise Refused(f"{name} is not in {NAME}" if name in there else f"{name} is missing")
    for name, (size, _) in sorted(manifest.files.items()):
        if there[name] != size:
            raise Refused(f"{name} has {there[name]} bytes, {size} were written")
    return manifest


def check_files(folder: Path, manifest: Manifest, names: Iterable[str]) -> None:
    """Raise Refused if one of these files differs from its checksum."""
    for name in names:
        if digest(folder / name) != tuple(manifest.files[name]):
            raise Refused(f"{name} is not what was written: its digest is another")


def verified(folder: Path, secret: bytes, run: str, step: int) -> Manifest:
    """The manifest of a checkpoint, after comparing all files. Raises Refused."""
    manifest = read_manifest(folder, secret, run, step)
    check_files(folder, manifest, sorted(manifest.files))
    return manifest


def digest(path: Path) -> tuple[int, str]:
    """Size and digest of a file. Raises Refused if the file cannot be read."""
    try:
        with path.open("rb") as file:
            checksum = digest_of(file)
            return file.tell(), checksum
    except OSError as error:
        raise Refused(f"{path.name} cannot be read: {error.strerror}") from None


def make_secret(run_dir: Path) -> None:
    """Create the run's secret if there is none. Raises RunError if checkpoints signed with one exist."""
    file = run_dir / SECRET
    if not file.exists() and any((run_dir / "checkpoints").glob(f"step-*/{NAME}")):
        raise RunError(
            f"{file} is missing: the checkpoints beside it are signed with it, and cannot be told from a "
            "stranger's; bring it back, or start again under another run.name"
        )
    kept_secret(file, SECRET_BYTES)


def read_secret(run_dir: Path) -> bytes:
    """The key of the run's manifests. Raises RunError if the file is missing or belongs to another user."""
    file = run_dir / SECRET
    try:
        text, owner = file.read_text().strip(), file.stat().st_uid
    except OSError as error:
        raise RunError(
            f"{file} cannot be read ({error.strerror}): without it no checkpoint of this run can be told "
            "from a stranger's"
        ) from None
    if owner != run_dir.stat().st_uid:
        raise RunError(f"{file} belongs to another user than {run_dir}: not the run's own, nothing is loaded")
    if not text:
        raise RunError(f"{file} is empty: without it no checkpoint of this run can be told from a stranger's")
    return text.encode()


def _signed(file: Path, secret: bytes) -> Manifest:
    try:
        value = json.loads(file.read_bytes())
        signature = value.pop("hmac")
        text = _text(value)
        authentic = hmac.compare_digest(_sign(text, secret), signature)
    except FileNotFoundError:
        raise Refused(f"{NAME} is missing") from None
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise Refused(f"{NAME} cannot be read ({type(error).__name__})") from None
    if not authentic:
        raise Refused(f"{NAME} is not signed with this run's secret")
    files = {name: (int(size), str(checksum)) for name, (size, checksum) in value["files"].items()}
    return Manifest(value["run"], value["step"], value["world"], files)


def _text(value: Mapping[str, object]) -> str:
    return json.dumps(value, sort_keys=True)


def _sign(text: str, secret: bytes) -> str:
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()
