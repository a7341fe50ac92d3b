"""What Papyan says of features, backpropagated errors and weights (Figs 7 to 10, 13), with reasons.

Letters: h, δ and g are the inputs, errors and gradients of a layer; H^l and Δ^l the second moments
of features and errors of hidden layer l, W^l its weight; C classes; η the weight decay.
"""

import math

from eigenscape.studies.claim import Claim
from eigenscape.studies.papyan_parts import KINDS

MATRIX = {"features": "H", "errors": "Δ", "weights": "W"}
FIGURE = {
    "features": ("Fig. 7, §7.5", "fig7", "Fig. 8, §7.6", "fig8"),
    "errors": ("Fig. 9a, §7.8", "fig9a", "Fig. 10, §7.9", "fig10"),
    "weights": ("Fig. 13, §7.13", "fig13", "Fig. 13, §7.13", "fig13"),
}
_FLAT = "Of deep layers the figure shows blue points that fall into the bulk; a tenth may be left."
_DEPTH = "A rank correlation of 1 would be growth at every layer; 0.8 lets neighbours change places"
_ALL = "A tenth may be left. The figure points to one panel, the text says it of all."

# What is known about differences. Numbers at paper scale are of MNIST, Fashion-MNIST and CIFAR-10.
_CIFAR = (
    "CIFAR-10 is behind the others: the rate that is best after six epochs is 0.004, and 60 epochs "
    "with it fit all samples but leave class means that the bulk still covers."
)
_KNOWN_GLOBAL = {
    "errors": "The weighted errors of a sample add up to zero over labels, so that the global mean "
    "times its weight is −(1/N) Σ p_{i,y} δ_{i,y}: on digits minus the mean error with true "
    "labels, to half a per cent. That is the loss's slope by a shift of the layer's output, which "
    "training makes small and nothing makes long. In the first three layers its eigenvalue is 0.9 "
    "to 1.3 times the largest of what class means have beside it, and the two mix; wherever it is "
    "1.5 times that or more the knockout takes 0.96 at least. At paper scale it takes 0.96, 0.17 "
    "and 0.79 in the last hidden layer, and anything from 0.02 to 1.00 before.",
    "weights": "It cannot hold close to a minimum where the layer has a bias, or a BatchNorm with "
    "a shift b behind it: the mean error with true labels is the loss's slope by that bias, which "
    "is −ηb, so that its share of W is b times the mean input and no more.",
}
_KNOWN_SEPARATE = {
    "weights": "On digits the outliers do come out of the bulk with depth, but C − 1 of them: the "
    "C-th singular value stays near the next. The errors of the true labels add up to nearly zero "
    "over classes. At paper scale σ_C/σ_{C+1} is from 1.00 to 1.06 in 22 of 24 layers.",
}
_KNOWN_FIRST = {
    "features": "On digits λ₂ is 1.7 times the bulk in the pixels themselves: class means stand "
    "out before the first layer has done anything. λ_C is below the bulk (both in the table): not "
    "all of them do. At paper scale λ₂ is 1.19, 1.23 and 0.26 times the bulk after the first "
    "layer, and 0.95, 1.16 and 0.07 times in the pixels.",
    "errors": "On digits some class means still stand out when errors have come back to the first "
    "of six layers of 96 units; λ_C is below the bulk (both in the table), so not all of them do. "
    "Of eight layers of 2048 units it is 0.58, 0.81 and 1.19: of CIFAR-10 one class mean or two "
    "stand out there.",
}
_KNOWN_WHISKERS = {
    "errors": "On digits neighbouring layers differ by less than seeds do, and what rounding grows "
    "to decides: two trainings by one recipe from the same seeds gave −0.71 ± 0.15 and −0.89 ± "
    f"0.11. At paper scale the ratio falls from 16 to 2.6 and from 31 to 3.6; of CIFAR-10 it stays "
    f"from 10 to 14. {_CIFAR}",
}
_KNOWN_LAST = {
    "features": "On digits two trainings by one recipe from the same seeds gave 3.05 ± 0.14 and "
    "2.87 ± 0.14: the end of 3, which is ours, is within one standard deviation of either. At "
    f"paper scale 1.5, 1.8 and 6.3. {_CIFAR}",
    "errors": f"At paper scale 2.6, 3.6 and 11. {_CIFAR}",
}
_KNOWN_OUT = {
    "features": f"At paper scale 9.3, 3.3 and 0.2. {_CIFAR}",
    "errors": f"At paper scale 7.0, 2.5 and 0.96. {_CIFAR}",
}
_PRODUCT = (
    "A tenth of the squared length, of which second moments are made, may be left: cos² is 0.9. "
    "The table has the cosine with the features of another class beside it: what is due to what "
    "all classes have in common."
)


def _kind_claims(kind: str) -> list[Claim]:
    knockout, first, scree, second = FIGURE[kind]
    M = MATRIX[kind]
    bulk = "σ_{C+1}" if kind == "weights" else "the bulk"
    smallest = "σ_C" if kind == "weights" else f"the smallest eigenvalue of {M}_class"
    return [
        Claim(
            f"papyan.{first}.{kind}.outliers",
            knockout,
            f"share of what the C largest values of {M} have above the next that disappears when "
            f"{M}_class is projected out, last hidden layer",
            "the outliers are attributable to it",
            low=0.9,
            why=_FLAT,
        ),
        Claim(
            f"papyan.{first}.{kind}.bulk",
            knockout,
            f"how much larger the sum of {M}'s values is after that knockout than that of the "
            "values after the C largest, as a share of the latter, last hidden layer",
            "the bulk is unaffected",
            high=0.1,
            why="A knockout of the C leading vectors leaves just the others: 0. A tenth cannot be "
            "seen on their logarithmic axes.",
        ),
        Claim(
            f"papyan.{first}.{kind}.global-mean",
            knockout,
            f"share of what the largest value of {M} has above the second that disappears when the "
            "global means' part is projected out, mean over hidden layers",
            "the largest outlier is attributable to it",
            low=0.9,
            why=_ALL,
            known=_KNOWN_GLOBAL.get(kind, ""),
        ),
        Claim(
            f"papyan.{second}.{kind}.separation",
            scree,
            f"rank correlation of {smallest} over {bulk} with depth, hidden layers",
            "separation increases with depth",
            low=0.8,
            why=f"{_DEPTH}.",
            known=_KNOWN_SEPARATE.get(kind, ""),
        ),
    ]


def _scree_claims(kind: str) -> list[Claim]:
    _, _, where, figure = FIGURE[kind]
    M = MATRIX[kind]
    ratio = f"smallest eigenvalue of {M}_class over the largest of {M}_within"
    return [
        Claim(
            f"papyan.{figure}.{kind}.first",
            where,
            f"second eigenvalue of {M}_class over the largest of {M}_within, first hidden layer",
            "too small to induce outliers",
            high=1.0,
            why="Above 1 one of them at least would stand out. The first is left out: it is the "
            "global mean's, and an outlier by the paper's own account.",
            known=_KNOWN_FIRST[kind],
        ),
        Claim(
            f"papyan.{figure}.{kind}.last",
            where,
            f"{ratio}, last hidden layer",
            "a bulk and C eigenvalues sticking out",
            low=1.0,
            why="Above 1 all C stand out.",
            known=_KNOWN_OUT[kind],
        ),
        Claim(
            f"papyan.{figure}.{kind}.whiskers",
            where,
            f"rank correlation of λ₂/λ_C of {M}_class with depth, hidden layers",
            "the ratio decreases with depth",
            high=-0.8,
            why=f"{_DEPTH}, with the other sign.",
            known=_KNOWN_WHISKERS.get(kind, ""),
        ),
        Claim(
            f"papyan.{figure}.{kind}.whiskers-last",
            where,
            f"λ₂/λ_C of {M}_class, last hidden layer",
            "all of similar magnitude",
            high=3.0,
            why="No number is given; half a decade on axes of several.",
            known=_KNOWN_LAST.get(kind, ""),
        ),
    ]


LAYER_CLAIMS = (
    *(claim for kind in KINDS for claim in _kind_claims(kind)),
    *(claim for kind in KINDS[:2] for claim in _scree_claims(kind)),
    Claim(
        "papyan.s7.6.features.discriminative",
        "§7.6",
        "rank correlation with depth of the share of samples whose nearest class mean is their own",
        "features at later layers are more discriminative",
        low=0.8,
        why=f"{_DEPTH}.",
    ),
    Claim(
        "papyan.fig9b.errors.cross",
        "Fig. 9b, §7.8",
        "once Δ_class is out: share of what the k largest eigenvalues have above the next that "
        "disappears when the k leading eigenvectors of Δ_cross are projected out; k of them are "
        "above the largest of Δ_within; last hidden layer",
        "the C² outliers are attributable to it",
        low=0.9,
        why=f"{_FLAT} Some of the C² are in the bulk, in the figure too.",
        known=f"At paper scale 0.99, 0.94 and 0.73. {_CIFAR}",
    ),
    Claim(
        "papyan.fig10.errors.cross-separation",
        "Fig. 10, §7.9",
        "rank correlation with depth of the number of eigenvalues of Δ_cross above the largest of "
        "Δ_within, hidden layers",
        "the C² outliers emerge from the bulk with depth",
        low=0.8,
        why=f"{_DEPTH}.",
    ),
    Claim(
        "papyan.table1.layers.class-products",
        "Table 1, Fig. 2, §1.12, §7.12",
        "cosine of a layer's class means of gradients g_c and h_c ⊗ δ_c, mean over classes and "
        "hidden layers",
        "g_c ≈ h_c ⊗ δ_c",
        low=math.sqrt(0.9),
        why=_PRODUCT,
        known="At paper scale it rises with depth, from 0.88 to 0.99, from 0.85 to 0.95 and from "
        "0.51 to 0.95: only layers at the end have it, and not all of them.",
    ),
    Claim(
        "papyan.table1.layers.cross-products",
        "Table 1, Fig. 2, §1.12, §7.12",
        "cosine of a layer's cross-class means of gradients g_{c,c'} and h_c ⊗ δ_{c,c'}, mean over "
        "pairs c' ≠ c and hidden layers",
        "g_{c,c'} ≈ h_c ⊗ δ_{c,c'}",
        low=math.sqrt(0.9),
        why=_PRODUCT,
        known="As for class means: at paper scale 0.99, 0.95 and 0.89 in the last hidden layer, "
        "0.86, 0.87 and 0.38 in the first.",
    ),
    Claim(
        "papyan.fig13.weights.gap",
        "Fig. 13, §7.13",
        "σ_C/σ_{C+1} over the largest later ratio of neighbours in the upper half of W's singular "
        "values, last hidden layer",
        "C outliers that are separated from a bulk",
        low=1.0,
        why="Above 1 the widest gap is after C.",
    ),
)
