"""The licence of each dependency, from an SBOM (CycloneDX): python tools/licences.py
sbom.cdx.json.
"""

import json
import sys
from pathlib import Path


def licence(component: dict) -> str:
    found = [
        each.get("expression") or each["license"].get("id") or each["license"].get("name")
        for each in component.get("licenses", [])
    ]
    named = dict.fromkeys(
        text.removeprefix("License :: OSI Approved :: ").split("\n")[0] for text in found
    )
    return "; ".join(named) or "not stated in its metadata"


def main() -> None:
    components = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["components"]
    for each in sorted(components, key=lambda c: c["name"].lower()):
        print(f"{each['name']} {each['version']}: {licence(each)}")


if __name__ == "__main__":
    main()
