"""Azurite, Microsoft's Azure Blob server for tests, as a subprocess. State lives as long as it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import urllib.request
from collections.abc import Sequence
from email.utils import formatdate
from pathlib import Path

from tests.support.child_server import ChildServer

_ACCOUNT = "devstoreaccount1"
# Azurite's published default.
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
# The server ends when its stdin does, so it does not outlive a test run that was killed.
_SERVE = """
process.stdin.resume(); process.stdin.on("end", () => process.exit(0));
const program = process.argv[1]; process.argv.splice(1, 1, program); require(program);
"""


def find_azurite() -> Path | None:
    """The script of `azurite-blob` that scripts/azurite.sh unpacked, or that is on PATH."""
    made = Path(os.environ.get("VENV", ".venv")) / "azurite/node_modules/.bin/azurite-blob"
    found = shutil.which(made) or shutil.which("azurite-blob")
    return Path(found).resolve() if found and shutil.which("node") else None


class Azurite(ChildServer):
    """`with Azurite(program) as server:`. Storage options fit memwal's store and pylance alike."""

    def __init__(self, program: Path) -> None:
        super().__init__()
        self._program = program

    def command(self, port: int) -> Sequence[str]:
        """See ChildServer."""
        self.endpoint = f"http://127.0.0.1:{port}/{_ACCOUNT}"
        self.storage_options = {
            "account_name": _ACCOUNT,
            "account_key": _KEY,
            "azure_endpoint": self.endpoint,
            "allow_http": "true",
        }
        options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
        where = ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
        return ["node", "-e", _SERVE, str(self._program), *where, *options, "--silent"]

    def make_container(self) -> str:
        """A new container's name."""
        name = self.make_name("container")
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
        lines = [*(f"{key}:{value}" for key, value in headers.items())]
        lines += [f"/{_ACCOUNT}/{_ACCOUNT}/{name}", "restype:container"]
        signed = "\n".join(["PUT", *([""] * 11), *lines])
        key = hmac.new(base64.b64decode(_KEY), signed.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(key).decode()}"
        urllib.request.urlopen(
            urllib.request.Request(
                f"{self.endpoint}/{name}?restype=container", headers=headers, method="PUT"
            ),
            timeout=30,
        ).close()
        return name
