"""The README and the addresses of a built package: hatchling's metadata hook.

The long description must stand alone, so a release has absolute links. RELEASE_URL is the public
address of the repository, for example ``make release RELEASE_URL=https://git.example.org/coreg``.
Without it the README stays as it is.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PLACES = {"Documentation": "docs/index.md", "Changelog": "CHANGELOG.md", "Security": "SECURITY.md"}


class PackageMetadata(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        url = os.environ.get("RELEASE_URL", "").rstrip("/")
        tag = f"v{metadata['version']}"
        if url:
            text = re.sub(r"(!\[[^\]]*\]\()(?![a-z]+:)", rf"\1{url}/raw/{tag}/", text)
            text = re.sub(r"(?<!!)(\[[^\]]*\]\()(?![a-z]+:|#)", rf"\1{url}/blob/{tag}/", text)
            metadata["urls"] = {
                "Repository": url,
                **{name: f"{url}/blob/{tag}/{path}" for name, path in PLACES.items()},
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
