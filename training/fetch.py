"""Fetch the emoji set with the npm client, check its hash, unpack it outside git."""

import hashlib
import subprocess
import tarfile
from pathlib import Path

from training.paths import stage_dir

PACKAGE = "@lobehub/fluent-emoji-3d"
VERSION = "1.1.0"
ARCHIVE = f"lobehub-fluent-emoji-3d-{VERSION}.tgz"
SHA256 = "c1bb7eee7de090205a232518a9ab4adb3df458bfbe8a1f78232991194c8b2e58"


def emoji_folder() -> Path:
    """Folder of the 256x256 RGBA webp files, fetched on first use."""
    raw = stage_dir("raw")
    assets = raw / "package" / "assets"
    if not assets.is_dir():
        unpack(fetch_archive(raw), raw)
    return assets


def fetch_archive(raw: Path) -> Path:
    archive = raw / ARCHIVE
    if not archive.exists():
        subprocess.run(["npm", "pack", "--silent", f"{PACKAGE}@{VERSION}"], cwd=raw, check=True)
    return archive


def unpack(archive: Path, raw: Path) -> None:
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SHA256:
        raise ValueError(f"{archive} has sha256 {found}, expected {SHA256}: delete it and run again")
    with tarfile.open(archive) as tar:
        tar.extractall(raw, filter="data")


if __name__ == "__main__":
    print(emoji_folder())
