"""The code of `block-structure.md`, block by block. It writes three pictures."""

import torch

import eigenscape as es
from eigenscape.structure import block_structure, squared_block_norms, stripes
from eigenscape_papers import datasets, networks
from eigenscape_papers.dong import adam_diagonal, block_preconditioning
from eigenscape_papers.ensemble import Adam, Recipe, fit

digits = datasets.load("digits").take(200, seed=0).to("cpu", torch.float64)


def network(num_classes, seed=0):
    """Make a network with one hidden layer of 8 units and weights of variance 1/inputs."""
    return networks.build(
        "one-hidden-8", input_shape=(1, 8, 8), num_classes=num_classes, seed=seed, init="lecun"
    ).double()


def hidden_blocks(model, targets):
    """Measure the hidden layer's Hessian, a block for each unit."""
    risk = es.EmpiricalRisk(model, es.CrossEntropy(), (digits.inputs, targets))
    layer = es.LayerHessian(risk, "fc1", num_products=512)
    units = es.Partition.by_output(layer.space)
    return squared_block_norms(layer, units, num_products=layer.space.size)


found = block_structure(hidden_blocks(network(10), digits.targets))
found.plot().figure.savefig("gallery-blocks.png", dpi=120)
print(f"r = {found.ratio:.3f}; without structure {found.ratio_null:.0f}")
print(f"inside the blocks: {found.inside:.0%}; without structure {found.inside_null:.0%}")

draw = torch.Generator().manual_seed(0)
tens = digits.targets
labels = {2: tens % 2, 10: tens}
for parts in (8, 30):
    labels[10 * parts] = tens * parts + torch.randint(parts, tens.shape, generator=draw)
for C, targets in labels.items():
    drawn = [block_structure(hidden_blocks(network(C, s), targets)).ratio for s in range(4)]
    mean = torch.tensor(drawn).log().mean().exp()
    print(f"C = {C:3d}: r = {mean:.4f}, C r = {C * mean:.2f}")

model = network(10)
risk = es.EmpiricalRisk(model, es.CrossEntropy(), digits)
H = es.Hessian(risk, num_products=592)
units = es.Partition.by_output(H.space, "fc1") + es.Partition.by_input(H.space, "fc2")
norms = squared_block_norms(H, units, num_products=H.space.size)
shares = stripes(norms, units.names[:8], units.names[8:])
shares.plot().figure.savefig("gallery-stripes.png", dpi=120)
layers = squared_block_norms(H, es.Partition.by_layer(H.space), num_products=H.space.size)
between = block_structure(layers)
print(f"unit with its own outgoing weights: {shares.shares[0]:.1%}; by chance {shares.null[0]:.1%}")
print(f"inside the two layers: {between.inside:.0%} of the squared norm")

recipe = Recipe(epochs=100, batch_size=32, optimizer=Adam(3e-3))
trained = fit(lambda seed: network(10, seed), digits, recipe, device="cpu")
model = trained.load_into(network(10), 0)
risk = es.EmpiricalRisk(model, es.CrossEntropy(), digits)
H = es.Hessian(risk, num_products=592)
after = block_structure(hidden_blocks(model, digits.targets))
layers = squared_block_norms(H, es.Partition.by_layer(H.space), num_products=H.space.size)
between = block_structure(layers)
print(f"loss {risk.value():.4f}; hidden layer: r = {after.ratio:.3f}")
print(f"inside the two layers: {between.inside:.0%}")

G = es.GaussNewton(risk, num_products=592)
optimiser = torch.optim.Adam(model.named_parameters(), lr=0.0)
for _ in range(100):
    batch = torch.randint(200, (32,), generator=draw)
    optimiser.zero_grad()
    logits = model(digits.inputs[batch])
    torch.nn.functional.cross_entropy(logits, digits.targets[batch]).backward()
    optimiser.step()
candidates = {
    "layers": es.Partition.by_layer(G.space),
    "units": es.Partition.by_output(G.space),
    "Kronecker": [es.KroneckerHessian(risk, layer) for layer in ("fc1", "fc2")],
    "Adam": adam_diagonal(optimiser.state_dict(), G.space),
}
for name, B in candidates.items():
    lost = block_preconditioning(G, B)
    print(f"{name:9s} error {lost.scaled_error:.2f}, max/mean eigenvalue {lost.effective:.0f}")
print(f"nothing: max/mean eigenvalue {lost.effective_before:.0f}")
lost.plot().figure.savefig("gallery-preconditioning.png", dpi=120)
