"""matplotlib for pictures in files, imported when one is drawn."""

from __future__ import annotations

from types import ModuleType

from coralopt.errors import CoraloptError


def pyplot(error: type[CoraloptError] = CoraloptError) -> ModuleType:
    """matplotlib's ``pyplot``, set up without a screen.

    Raises:
        CoraloptError: matplotlib is not installed; of the type ``error``, says what to install.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        # Equal figures give equal files.
        matplotlib.rcParams["svg.hashsalt"] = "coralopt"
        import matplotlib.pyplot as plt
    except ImportError as missing:
        raise error(f"plots need matplotlib ({missing}); pip install 'coralopt[plot]'") from missing
    return plt
