"""Names that stay the same over re-plans, and are valid wherever a target needs them."""

from __future__ import annotations

import hashlib
import re

#: A DNS label has 63 characters; stages add "-s0" and Kubernetes 11 characters of revision to a StatefulSet's name.
LONGEST = 48


def dns_label(*parts: str, longest: int = LONGEST) -> str:
    """A DNS label from the parts: lower case, digits and hyphens; long ones keep their head and end in a digest.

    Equal parts give equal labels, whatever else the plan holds. Two different inputs that would fold to one label
    differ in their digests, which is added whenever folding changed more than case.
    """
    plain = "-".join(parts)
    folded = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-") or "x"
    if not folded[0].isalpha():
        folded = f"x-{folded}"
    if folded == plain.lower() and len(folded) <= longest:
        return folded
    digest = hashlib.sha256(plain.encode()).hexdigest()[:8]
    return f"{folded[: longest - 9].rstrip('-')}-{digest}"
