"""What `publish` and the index server agree on, beyond the form that twine sends."""

from __future__ import annotations

from builder.proof import PROOFS_SUFFIX
from builder.publish.provenance import SUFFIX as STATEMENT_SUFFIX

#: Where twine, `uv publish` and `buildfarm publish` upload to; a GET says what a token allows.
UPLOAD_PATH = "legacy"
#: The fields of a form with the files beside a wheel, and the suffixes of these files.
EVIDENCE = {"buildfarm_proofs": PROOFS_SUFFIX, "buildfarm_statement": STATEMENT_SUFFIX}
#: Bytes of one such field. Reading JSON needs about twenty times as much memory.
MAX_EVIDENCE = 12 * 2**20
#: The answers to an upload that was accepted.
PUBLISHED, UNCHANGED, UPDATED = "published", "already published", "proofs updated"
