"""One look for paper and screen: colours, sizes, and the names of layers on axes.

The eight qualitative colours are those of Okabe and Ito ("Color Universal Design", 2008), which
stay apart for readers with any common kind of colour blindness; the dark theme lightens them.
"""

from typing import Any

from eigenscape.records import Colour

LIGHT = {
    "ink": "#1f2933",
    "muted": "#7b8794",
    "grid": "#e4e7eb",
    "paper": "#ffffff",
    "hessian": "#0072b2",
    "gauss_newton": "#d55e00",
    "residual": "#009e73",
    "outlier": "#b5179e",
    "negative": "#a4510b",
    "first": "#0072b2",
    "second": "#d55e00",
    "third": "#009e73",
    "fourth": "#cc79a7",
    "fifth": "#56b4e9",
    "sixth": "#e69f00",
    "seventh": "#4d4d4d",
    "warning": "#b45309",
}
DARK = LIGHT | {
    "ink": "#e6e9ec",
    "muted": "#8b97a3",
    "grid": "#2b343d",
    "paper": "#171c21",
    "hessian": "#56b4e9",
    "gauss_newton": "#f08a4b",
    "residual": "#38c79e",
    "outlier": "#ee82d8",
    "negative": "#f2b263",
    "first": "#56b4e9",
    "second": "#f08a4b",
    "third": "#38c79e",
    "fourth": "#e3a6c6",
    "fifth": "#9ed4f5",
    "sixth": "#f5c14f",
    "seventh": "#b9c0c7",
    "warning": "#f5b041",
}


# From the first layer to the last: dark blue to yellow in print, never too near the paper's colour.
_RAMP_LIGHT = ("#2c2a6b", "#2d5f8f", "#26908c", "#4fb26a", "#b9a920")
_RAMP_DARK = ("#8f8be0", "#5aa2dc", "#45c4b8", "#84d97f", "#f0dd5c")
# Of a heat map: the paper's colour is nothing, ink is much.
HEAT_LIGHT = ("#f4f7fa", "#c9dcec", "#82b4d6", "#2f7fb8", "#0b4a80", "#06264a")
HEAT_DARK = ("#1c2229", "#173d5c", "#1f689b", "#4b9fcf", "#a3d3ec", "#eef8ff")

RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titleweight": "regular",
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.labelcolor": LIGHT["ink"],
    "axes.edgecolor": LIGHT["muted"],
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.color": LIGHT["muted"],
    "ytick.color": LIGHT["muted"],
    "xtick.labelcolor": LIGHT["ink"],
    "ytick.labelcolor": LIGHT["ink"],
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "text.color": LIGHT["ink"],
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "pdf.fonttype": 42,  # letters stay letters, which publishers ask for
    "text.usetex": False,
}


def colour(which: Colour, *, dark: bool = False) -> str:
    """Return the colour of a role, or of a place from 0 to 1 on the layers' ramp, as #rrggbb.

    Args:
        which: The role or place.
        dark: Whether it stands on a dark page.

    Returns:
        The colour.
    """
    if isinstance(which, str):
        return (DARK if dark else LIGHT)[which]
    return ramp(_RAMP_DARK if dark else _RAMP_LIGHT, which)


def ramp(stops: tuple[str, ...], fraction: float) -> str:
    """Return the colour at a place from 0 to 1 between evenly spaced stops."""
    position = min(max(fraction, 0.0), 1.0) * (len(stops) - 1)
    left = min(int(position), len(stops) - 2)
    share = position - left
    mixed = [
        round(
            int(stops[left][i : i + 2], 16) * (1 - share)
            + int(stops[left + 1][i : i + 2], 16) * share
        )
        for i in (1, 3, 5)
    ]
    return "#" + "".join(f"{channel:02x}" for channel in mixed)
