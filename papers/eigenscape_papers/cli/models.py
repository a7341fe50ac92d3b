"""`eigenscape models`: the built-in networks and the grammar of their names."""

import json
from typing import TYPE_CHECKING

import typer

from eigenscape.cli.verbs import AsJson, Debug, Screen, Watch

if TYPE_CHECKING:
    from eigenscape_papers.networks import ModelInfo

# Inputs to count parameters for, tried in this order: grey images, colour images, text.
_SHAPES = ((1, 28, 28), (3, 32, 32), (64,))
_NUM_CLASSES = 10


def models(as_json: AsJson = False, debug: Debug = False) -> None:
    """List the built-in networks and how they are named.

    Examples:
      eigenscape models
    """
    from eigenscape_papers import networks as networks

    screen, infos = Screen(), networks.describe()
    with Watch(screen, "counting parameters"):
        counts = [_count(info) for info in infos]
    if as_json:
        rows = [
            {
                "grammar": info.grammar,
                "examples": list(info.examples),
                "summary": info.summary,
                "source": info.source,
                "layers": info.layers,
            }
            for info in infos
        ]
        typer.echo(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    screen.table(
        {
            "name": [info.grammar for info in infos],
            "example": [info.examples[-1] for info in infos],
            "parameters": [count for _, count in counts],
            "for input": ["×".join(map(str, shape)) for shape, _ in counts],
            "what": [info.summary for info in infos],
        }
    )
    screen.say(
        f"Parts in brackets may be left out; parameters are those of the example with "
        f"{_NUM_CLASSES} classes. Use a name as MODEL: eigenscape analyze F-32^2 --data digits"
    )


def _count(info: "ModelInfo") -> tuple[tuple[int, ...], int]:
    """Return the first input shape that the example takes, and its number of parameters."""
    from eigenscape.errors import ShapeError
    from eigenscape_papers import networks as networks

    for shape in _SHAPES:
        try:
            net = networks.build(info.examples[-1], input_shape=shape, num_classes=_NUM_CLASSES)
        except ShapeError:
            continue
        return shape, networks.count_parameters(net)
    return (), 0
