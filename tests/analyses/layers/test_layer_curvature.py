"""Each layer's block against its dense matrix."""

import pytest
import torch
from torch import nn

import eigenscape as es
from eigenscape.analyses import LayerBlock, layer_curvature, layer_names, rank_one_share
from eigenscape.errors import EmptySelectionError, UnknownNameError
from eigenscape.records import Progress
from tests.small_net import X, Y


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 9), nn.ReLU(), nn.LayerNorm(9), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 3)
    )


def risk_of(model: nn.Module | None = None, **settings: object) -> es.EmpiricalRisk:
    return es.EmpiricalRisk(model or network(), es.CrossEntropy(), (X, Y), **settings)


def check_exact(block: LayerBlock, risk: es.EmpiricalRisk) -> None:
    H = es.LayerHessian(risk, block.name).to_dense()
    assert block.trace == pytest.approx(float(H.trace()))
    assert block.frobenius == pytest.approx(float(H.norm()))
    assert (block.trace_stderr, block.frobenius_stderr) == (0.0, 0.0)
    values, vectors = torch.linalg.eigh(H)
    k = block.values.numel()
    torch.testing.assert_close(block.values, values.flip(0)[:k])
    assert block.stable_rank == pytest.approx(float(H.norm() / values[-1]) ** 2)
    if block.kronecker_error is None:
        return
    K = es.KroneckerHessian(risk, block.name)
    dense = K.to_dense()
    assert block.kronecker_error == pytest.approx(float((H - dense).norm() / H.norm()))
    top = torch.linalg.eigh(dense).eigenvectors.flip(1)[:, :k]
    overlap = (vectors.flip(1)[:, :k].T @ top).square().sum() / k
    assert float(block.kronecker_overlap[-1]) == pytest.approx(float(overlap))
    torch.testing.assert_close(
        block.rank_one, rank_one_share(K.to_matrices(vectors.flip(1)[:, :k]))
    )
    torch.testing.assert_close(block.input_values.sum(), K.input_factor.trace())
    torch.testing.assert_close(block.output_values.sum(), K.output_factor.trace())


def test_small_blocks_are_exact() -> None:
    risk = risk_of()
    record = layer_curvature(risk, num_pairs=5, num_probes=60)
    assert [block.name for block in record.layers] == ["0", "2", "3", "5"]
    for block in record.layers:
        check_exact(block, risk)
    kinds = [block.kind for block in record.layers]
    assert kinds == ["Linear", "LayerNorm", "Linear", "Linear"]
    assert record.layers[1].kronecker_error is None
    assert record.layers[0].num_positions == 1


def test_large_blocks_are_estimated_without_bias() -> None:
    risk = risk_of()
    H = es.LayerHessian(risk, "3").to_dense()
    K = es.KroneckerHessian(risk, "3").to_dense()

    def block(seed: int) -> LayerBlock:
        return layer_curvature(risk, ["3"], num_pairs=3, num_probes=8, seed=seed).layers[0]

    assert block(0).trace_stderr > 0.0
    truths = {
        "trace": float(H.trace()),
        "frobenius": float(H.norm()),
        "kronecker_error": float((H - K).norm() / H.norm()),
    }
    draws = [block(seed) for seed in range(60)]
    for name, truth in truths.items():
        values = torch.tensor([getattr(b, name) for b in draws])
        errors = torch.tensor([getattr(b, f"{name}_stderr") for b in draws])
        assert abs(float(values.mean()) - truth) < 4.5 * float(values.std()) / 60**0.5, name
        assert 0.5 < float(errors.square().mean().sqrt() / values.std()) < 2.0, name


@pytest.mark.parametrize("batch_size", [3, 32])
def test_batches_change_nothing(batch_size: int) -> None:
    model = network()
    whole = layer_curvature(risk_of(model), num_pairs=3, num_probes=4)
    ragged = layer_curvature(risk_of(model, batch_size=batch_size), num_pairs=3, num_probes=4)
    for one, other in zip(whole.layers, ragged.layers, strict=True):
        assert one.trace == pytest.approx(other.trace)
        torch.testing.assert_close(one.values, other.values)
        if one.kronecker_error is not None:
            assert one.kronecker_error == pytest.approx(other.kronecker_error)


def test_convolutions_and_embeddings_take_part() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(6, 5)
            self.conv = nn.Conv1d(5, 4, 3, padding=1)
            self.scale = nn.Parameter(torch.tensor(1.5))
            self.head = nn.Linear(4 * 7, 3)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            hidden = self.conv(self.embed(tokens).transpose(1, 2)).relu()
            return self.scale * self.head(hidden.flatten(1))

    tokens, y = torch.randint(0, 6, (20, 7)), torch.randint(0, 3, (20,))
    risk = es.EmpiricalRisk(Mixed(), es.CrossEntropy(), (tokens, y))
    record = layer_curvature(risk, num_pairs=4, num_probes=90)
    by_name = {block.name: block for block in record.layers}
    assert set(by_name) == {"embed", "conv", "head", "scale"} == set(layer_names(risk))
    assert by_name["conv"].num_positions == 7
    assert by_name["embed"].kronecker_error is None
    assert by_name["scale"].kind == "parameter"
    for block in record.layers:
        if block.name != "scale":  # a product of two parameters: checked below
            check_exact(block, risk)
    scale = by_name["scale"]
    H = es.Hessian(risk)[risk.space.block("scale")].to_dense()
    assert (scale.trace, scale.frobenius) == pytest.approx((float(H), abs(float(H))))


def test_progress_frame_and_text() -> None:
    seen: list[Progress] = []
    record = layer_curvature(risk_of(), num_pairs=2, num_probes=2, progress=seen.append)
    assert [(step.done, step.total) for step in seen] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    frame = record.to_frame()
    assert frame["layer"].tolist() == ["0", "2", "3", "5"]
    assert frame["Kronecker error"].isna().tolist() == [False, True, False, False]
    assert "–" in str(record)


def test_refusals() -> None:
    def function(params: dict, x: torch.Tensor) -> torch.Tensor:
        return x @ params["w"]

    risk = es.EmpiricalRisk(function, es.CrossEntropy(), (X, Y), params={"w": torch.randn(4, 3)})
    assert layer_names(risk) == ()
    with pytest.raises(EmptySelectionError, match="pure function"):
        layer_curvature(risk)
    with pytest.raises(UnknownNameError, match="no layer of that name"):
        layer_curvature(risk_of(), ["fc1"])
