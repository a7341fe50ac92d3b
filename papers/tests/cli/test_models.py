import json

from eigenscape_papers import networks as models
from tests.cli.conftest import Cli


def test_all_families_are_listed_with_a_number_of_parameters(cli: Cli) -> None:
    result = cli("models")
    assert result.exit_code == 0
    for info in models.describe():
        assert info.grammar in result.stdout
    net = models.build("one-hidden-8", input_shape=(1, 28, 28), num_classes=10)
    assert f"{models.count_parameters(net):,}" in result.stdout


def test_json_has_the_same(cli: Cli) -> None:
    found = json.loads(cli("models", "--json").stdout)
    assert [row["grammar"] for row in found] == [info.grammar for info in models.describe()]
