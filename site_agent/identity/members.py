"""The members of a study by their keys, which all operators confirm by the eight words, over the
telephone.

The coordinator is the certificate authority, so a signature counts only if this site's own operator
has confirmed its key. Confirmed keys are in members.json, with those that they replaced: words that
stay in a file must not bring back a key that was replaced since.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from coreg_core.errors import StorageError
from coreg_core.messages import Proposal
from coreg_wire.files.disk import write_whole
from coreg_wire.identity.invitation import eight_words, same_words
from coreg_wire.identity.names import fingerprint, key_fingerprint, load_certificates
from coreg_wire.identity.signatures import private_key
from site_agent.identity.identity import Identity
from site_agent.identity.run_keys import RunKeys

FILE = "members.json"
OTHERS = "the words that you gave are not these"


@dataclass
class Members:
    """The members of a study by their keys, which all operators confirm by the eight words, over
    the telephone.
    """

    identity: Identity
    written: str = ""  # the words of a setting
    accept: bool = False
    unseen: dict[str, str] = field(default_factory=dict)  # confirmed for this process only

    def __post_init__(self) -> None:
        self._path = self.identity.directory / FILE
        try:
            stored = (
                json.loads(self._path.read_text(encoding="utf-8")) if self._path.exists() else {}
            )
            self._confirmed = {str(site): str(key) for site, key in stored.get("keys", {}).items()}
            self._replaced = {str(key) for key in stored.get("replaced", ())}
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise StorageError(
                f"{self._path}: cannot be read ({error}). Delete it: the agent asks for the eight"
                " words again."
            ) from None

    def keys_of(self, proposal: Proposal) -> dict[str, str]:
        """The enrolled sites of a plan with their keys; this site's own key is its own."""
        if not proposal.keys:
            return {}
        shown = zip(proposal.plan.sites, proposal.keys, strict=False)
        own = key_fingerprint(private_key(self.identity.key_pem).public_key())
        return {site: own if site == self.identity.name else key for site, key in shown if key}

    def words(self, keys: Mapping[str, str]) -> str:
        authority = load_certificates(self.identity.ca_pem, "ca.pem")[0]
        return eight_words(fingerprint(authority), keys)

    def news(self, keys: Mapping[str, str]) -> str:
        """What is neither confirmed nor accepted of these keys, as a phrase; "" if all are."""
        taken = {**self.unseen, **self._confirmed}
        new = [site for site in keys if site not in taken and site != self.identity.name]
        changed = [site for site, key in keys.items() if taken.get(site, key) != key]
        parts = [f"{', '.join(new)} {'is' if len(new) == 1 else 'are'} new"] if new else []
        parts += [f"another key than before: {', '.join(changed)}"] if changed else []
        if parts and self.written and not same_words(self.written, self.words(keys)):
            parts.append(OTHERS)
        return "; ".join(parts)

    def settled(self, keys: Mapping[str, str]) -> bool:
        """Whether this site answers with these keys: they are confirmed, written down as words, or
        accepted unseen.
        """
        if not self.news(keys):
            return True
        # Words that stay in a file must not bring back a key that was replaced since.
        came_back = self._replaced & {*keys.values()}
        if self.written and not came_back and same_words(self.written, self.words(keys)):
            self.confirm(keys)
            return True
        if self.accept:  # never another key than one that was compared
            self.unseen |= {site: key for site, key in keys.items() if site not in self._confirmed}
        return not self.news(keys)

    def confirm(self, keys: Mapping[str, str]) -> None:
        """Remember keys whose words the operators have compared: on the disk first, since an answer
        can follow at once.
        """
        confirmed = {**self._confirmed, **keys}
        earlier = self._replaced | {*self._confirmed.values()}
        replaced = earlier - {*confirmed.values()}
        stored = {"keys": confirmed, "replaced": sorted(replaced)}
        write_whole(self._path, json.dumps(stored, indent=1).encode() + b"\n", mode=0o600)
        self._confirmed = confirmed
        self._replaced = replaced

    def key_of(self, site: str) -> str | None:
        return self._confirmed.get(site) or self.unseen.get(site)

    def run_keys(self) -> RunKeys:
        """The keys of runs, for these members only."""
        return RunKeys(private_key(self.identity.key_pem), self.key_of)
