"""Draw a record with matplotlib: what `record.plot()` does."""

from typing import TYPE_CHECKING, Any

from eigenscape.errors import EigenscapeError, WrongTypeError, require_packages
from eigenscape.records import Picture, Record
from eigenscape.report._matplotlib import draw_panel, fill_figure, size_of, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def pictures_of(record: Any) -> tuple[Picture, ...]:
    """Return the pictures of a record, the main one first.

    Raises:
        EigenscapeError: If it is no record, or has none.
    """
    what = type(record).__name__
    if not isinstance(record, Record):
        raise EigenscapeError(f"`draw(record)` must be a record of this package; got {what}.")
    pictures = record.pictures()
    if not pictures:
        raise EigenscapeError(
            f"`draw(record)` has no picture of a {what}. Use `record.to_frame()` and plot its "
            "columns, or define `pictures` in its class."
        )
    return pictures


def draw(record: Any, ax: "Axes | None" = None) -> "Axes":
    """Draw a record.

    Certificates are part of the picture: residuals are error bars, densities have a band of two
    standard errors. An analysis is drawn as the spectrum of its Hessian; `write_figures` draws
    everything it has. A record of your own is drawn if it defines `pictures`.

    Args:
        record: Any record that this package returns from a computation.
        ax: Axes to draw on; then a picture of several panels gives its first one. By default a new
            figure with all of them.

    Returns:
        The (first) axes, for titles and limits of your own.

    Raises:
        EigenscapeError: If there is no picture of this kind of record.
        MissingPackageError: If matplotlib is not installed.
        WrongTypeError: If `ax` is no matplotlib axes.

    Examples:
        >>> import torch
        >>> from eigenscape.linalg import eigsh
        >>> from eigenscape.operator import Dense
        >>> axes = draw(eigsh(Dense(torch.diag(torch.tensor([3.0, 2.0, 1.0]))), num_pairs=2))
        >>> axes.get_ylabel()
        'eigenvalue λ'
    """
    picture = pictures_of(record)[0]
    require_packages("record.plot()", "matplotlib")
    if ax is None:
        import matplotlib.pyplot as plt

        with style():
            figure = plt.figure(figsize=size_of(picture), layout="constrained")
            return fill_figure(figure, picture)
    from matplotlib.axes import Axes

    if not isinstance(ax, Axes):
        raise WrongTypeError(
            f"`draw(ax=...)` must be matplotlib axes; got {type(ax).__name__}. "
            "`plt.subplots()[1]` makes some."
        )
    with style():
        draw_panel(picture.panels[0], ax)
    return ax
