"""The code of `anchor-vectors.md`, block by block. It writes gallery-anchors.png."""

from functools import partial

import matplotlib.pyplot as plt
import torch

from eigenscape_papers import datasets, networks
from eigenscape_papers.ensemble import Adam, Recipe, fit
from eigenscape_papers.representations import (
    LogLinear,
    anchor_table,
    embedding_diagnostics,
    fit_anchors,
    log_bulk_partitions,
    output_states,
)


def language(num_words, num_texts=500, length=16):
    """Make texts of words: some are common, and each has its own likely followers."""
    draw = torch.Generator().manual_seed(0)
    before, after = torch.randn(2, num_words, 4, generator=draw)
    logits = before @ after.T - torch.log(torch.arange(num_words) + 3.0)
    words = [torch.zeros(num_texts, dtype=torch.int64)]
    for _ in range(length):
        words.append(logits[words[-1]].softmax(1).multinomial(1, generator=draw).squeeze(1))
    text = torch.stack(words, dim=1)
    return datasets.DataSet(f"{num_words} words", text[:, :-1], text[:, 1:], num_words)


data = {num: language(num) for num in (20, 600)}
print(data[600])

recipe = Recipe(epochs=12, batch_size=16, optimizer=Adam(3e-3))


def build(num, head, seed):
    """Make a network of 16 dimensions with one of three heads."""
    name = "GPT-1x16x2-tied" if head == "tied" else "GPT-1x16x2"
    net = networks.build(name, input_shape=(16,), num_classes=num, seed=seed)
    if head == "untied, small":
        with torch.no_grad():
            net.head.weight.mul_(net.embed.weight.std() / net.head.weight.std())
    return net


models = {}
for num in (20, 600):
    for head in ("tied", "untied, small", "untied"):
        trained = fit(partial(build, num, head), data[num], recipe, device="cpu")
        net = trained.load_into(build(num, head, 0), 0)
        found = output_states(net, data[num].inputs, head="head")
        models[num, head] = LogLinear(found.states.double(), found.embedding.double())
        shape = embedding_diagnostics(models[num, head].embedding)
        print(f"{num:3} words, {head:13}: cosine {shape.mean_cosine:+.2f}, ", end="")
        print(f"{shape.effective_rank:.1f} directions")

figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
for (num, head), model in models.items():
    sizes = [k for k in (0, 1, 3, 10, 30, 100, 300) if k < num]
    table = anchor_table(model.states, model.embedding, num_top=sizes, ridge=1e-9)
    shares = [mse / variance for mse, variance in zip(table.mse, table.variance, strict=True)]
    print(f"{num:3} words, {head:13}:", " ".join(f"{share:.3f}" for share in shares))
    style = "o-" if num == 600 else "s:"
    ax.plot([k + 1 for k in sizes], shares, style, label=f"{num} words, {head}")
ax.set(xscale="log", yscale="log", xlabel="1 + words left out", ylabel="mse / variance")
ax.legend(fontsize=7)
figure.savefig("gallery-anchors.png", dpi=120)

teacher = models[600, "tied"]
for name, model in {"before": teacher, "shifted": teacher.with_logits_shifted(-5.0)}.items():
    log_bulk = log_bulk_partitions(model.states, model.embedding, (100,)).squeeze(1)
    anchor = fit_anchors(model.states, log_bulk, ridge=1e-9).anchors[0]
    logit = model.states[7] @ model.embedding[0]
    above = model.states[7] @ (model.embedding[0] - anchor)
    print(f"{name:7}: logit {logit:+.2f}, above the anchor {above:+.2f}")
