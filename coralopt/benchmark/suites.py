"""Named sets of instances."""

from __future__ import annotations

from types import MappingProxyType

#: Suite -> instance patterns.
SUITES = MappingProxyType(
    {
        "placement": ("placement:*:nodes=3..8:seed=0",),
        "allocation": ("allocation:extended:columns=1000,10000,100000:supply=ample,scarce:seed=0",),
        "small": (
            "placement:*:nodes=2..3:seed=0:scenario=tiny",
            "allocation:tiny:columns=40,80:supply=ample,scarce:seed=0",
        ),
    }
)
