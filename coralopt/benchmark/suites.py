"""Named sets of instances."""

from __future__ import annotations

from types import MappingProxyType

#: Suite -> instance patterns.
SUITES = MappingProxyType(
    {
        "placement": ("placement:*/prefill:nodes=3,5,7:seed=0", "placement:*/decode:nodes=4,6,8:seed=0"),
        "allocation": ("allocation:extended:columns=1000,10000,100000:supply=ample,scarce:seed=0",),
        "small": (
            "placement:*:nodes=2:seed=0:scenario=tiny",
            "allocation:tiny:columns=40:supply=ample,scarce:seed=0",
        ),
    }
)
