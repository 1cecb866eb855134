"""Writes a wheel that carries the program: wheel.py VERSION TAG PROGRAM WHEEL.

The format is PEP 427's. The program is a script of the wheel, so that pip puts it on the PATH. Times in
it come from SOURCE_DATE_EPOCH, so that the same program gives the same wheel.
"""

import base64
import hashlib
import os
import pathlib
import re
import sys
import time
import zipfile

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
REPOSITORY = "https://github.com/holdline/holdline"
RAW = "https://raw.githubusercontent.com/holdline/holdline"


def main():
    version, tag, program, wheel = sys.argv[1:]
    info = f"holdline-{version}.dist-info"
    python, abi, platforms = tag.split("-")
    tags = "".join(f"Tag: {python}-{abi}-{platform}\n" for platform in platforms.split("."))
    files = {
        f"holdline-{version}.data/scripts/holdline": (pathlib.Path(program).read_bytes(), 0o755),
        "holdline/__init__.py": ((HERE / "holdline/__init__.py").read_bytes(), 0o644),
        "holdline/__main__.py": ((HERE / "holdline/__main__.py").read_bytes(), 0o644),
        f"{info}/METADATA": (metadata(version), 0o644),
        f"{info}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: holdline\nRoot-Is-Purelib: false\n{tags}".encode(),
            0o644,
        ),
    }
    for name in ("LICENSE-MIT", "LICENSE-APACHE"):
        files[f"{info}/licenses/{name}"] = ((ROOT / name).read_bytes(), 0o644)
    record = f"{info}/RECORD"
    rows = "".join(f"{name},{digest(data)},{len(data)}\n" for name, (data, _) in files.items())
    files[record] = (f"{rows}{record},,\n".encode(), 0o644)

    seconds = max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), 315532800)  # ZIP begins in 1980
    date = time.gmtime(seconds)[:6]
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (data, mode) in files.items():
            entry = zipfile.ZipInfo(name, date)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)


def metadata(version):
    head = (HERE / "METADATA").read_text().replace("VERSION", version)
    return f"{head}\n{linked((ROOT / 'README.md').read_text(), version)}".encode()


def linked(text, version):
    """The text with links to the repository instead of to files beside it, as PyPI needs them."""
    text = re.sub(r"!\[([^]]*)\]\((?!\w+:)", rf"![\1]({RAW}/v{version}/", text)
    return re.sub(r"(?<!!)\[([^]]*)\]\((?!\w+:|#)", rf"[\1]({REPOSITORY}/blob/v{version}/", text)


def digest(data):
    text = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return f"sha256={text}"


main()
