"""What the words of a report mean: one paragraph, one formula, one reference each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Definition:
    """One entry of the report's last section.

    Attributes:
        key: Its anchor, after "def-".
        name: The word.
        text: What it means.
        formula: In plain characters.
        source: Where it comes from.
    """

    key: str
    name: str
    text: str
    formula: str
    source: str


PAPYAN = "Papyan, “Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra”, 2020"
WU = (
    "Wu, Zhu, Wu, Wang, Ge, “Dissecting Hessian: Understanding Common Structure of Hessian in "
    "Neural Networks”, 2020"
)
DONG = "Dong, Zhang, Yao, Sun, “Towards Quantifying the Hessian Structure of Neural Networks”, 2025"

DEFINITIONS = (
    Definition(
        "hessian",
        "Hessian H",
        "The matrix of second derivatives of the mean loss L with respect to the parameters θ. Its "
        "eigenvalues are the curvatures of the loss along its eigenvectors.",
        "H = ∂²L/∂θ∂θᵀ,  L(θ) = (1/N) Σₙ ℓ(f(xₙ; θ), yₙ)",
        "Pearlmutter, “Fast exact multiplication by the Hessian”, 1994",
    ),
    Definition(
        "product",
        "Product",
        "One multiplication of the matrix with one vector, computed from the network without "
        "forming the matrix. It costs about two gradients, and is the unit of cost.",
        "v ↦ H v",
        "Pearlmutter, 1994",
    ),
    Definition(
        "gauss-newton",
        "Gauss-Newton matrix G",
        "The part of the Hessian that is left when the network is replaced by its linearisation; J "
        "is the Jacobian of the outputs f. It has no negative eigenvalue where the loss is convex "
        "in the outputs.",
        "G = (1/N) Σₙ Jₙᵀ (∂²ℓₙ/∂f∂fᵀ) Jₙ",
        f"Schraudolph, “Fast curvature matrix-vector products”, 2002; {PAPYAN}, §4",
    ),
    Definition(
        "residual-matrix",
        "Residual H − G",
        "The part of the Hessian that comes from the curvature of the network itself. Where G has "
        "no negative eigenvalue, the negative ones of H come from this part.",
        "H − G = (1/N) Σₙ Σₖ (∂ℓₙ/∂fₖ) ∂²fₖ/∂θ∂θᵀ",
        f"{PAPYAN}, §4",
    ),
    Definition(
        "certificate",
        "Residual of an eigenpair, and what it certifies",
        "For a unit vector v and a number λ the residual r is measured with a real product. A "
        "symmetric matrix then has an eigenvalue within r of λ, whatever the solver did; that no "
        "other eigenvalue was missed is likely, and not proved. In single precision, rounding of "
        "the products comes on top.",
        "r = ‖H v − λ v‖  ⇒  some eigenvalue of H lies in [λ − r, λ + r]",
        "Parlett, “The Symmetric Eigenvalue Problem”, 1998, theorem 4.5.1",
    ),
    Definition(
        "standard-error",
        "Standard error (s.e.)",
        "Traces, norms and densities are means over random probe vectors. The standard error is "
        "estimated from the spread between probes; the truth is as a rule within two of them.",
        "s.e. = spread between probes / √(number of probes)",
        "Hutchinson, “A stochastic estimator of the trace of the influence matrix”, 1990",
    ),
    Definition(
        "density",
        "Spectral density",
        "How the eigenvalues are distributed, by stochastic Lanczos quadrature, smoothed with a "
        "Gaussian of width σ. The certified ends are taken out first and put back as stems. The "
        "band shows the standard error of the curve, and knows nothing of the finite width σ.",
        "ρ(t) = (1/n) Σᵢ δ(t − λᵢ), smoothed;  ∫ρ = 1",
        f"Lin, Saad, Yang, “Approximating spectral densities of large matrices”, 2016; {PAPYAN}, "
        "appendix C",
    ),
    Definition(
        "outliers",
        "Outliers",
        "Eigenvalues that stand apart above the rest: those before the widest relative gap among "
        "the largest ones, where that is at least 1.5, three times as wide as the other gaps' "
        "median (in logarithms), and certain: the intervals λ ± residual on its two sides do not "
        "touch. Classifiers with C classes often have C or C − 1 of them.",
        "number = argmaxᵢ λᵢ / λᵢ₊₁",
        f"Sagun, Evci, Güney, Dauphin, Bottou, 2018; {PAPYAN}",
    ),
    Definition(
        "gradient-overlap",
        "Share of the gradient",
        "How much of the gradient's squared length lies in the span of the first j eigenvectors. A "
        "random direction in n dimensions has j/n of it there.",
        "‖P_j g‖² / ‖g‖²",
        "Gur-Ari, Roberts, Dyer, “Gradient descent happens in a tiny subspace”, 2018",
    ),
    Definition(
        "stable-rank",
        "Stable rank",
        "About how many eigenvalues as large as the first it would take to make up the matrix. It "
        "is at most the rank, and does not change when small eigenvalues are disturbed.",
        "‖H‖_F² / λ₁²",
        "Rudelson, Vershynin, “Sampling from large matrices”, 2007",
    ),
    Definition(
        "inputs",
        "E[xxᵀ], autocorrelation of a layer's input",
        "The mean of xxᵀ over all samples (and positions), x being what the layer receives, with a "
        "1 appended for its bias. It is often near to rank one, because x has a large mean.",
        "E[xxᵀ] = (1/N) Σₙ xₙxₙᵀ",
        f"{WU}, §4.3",
    ),
    Definition(
        "outputs",
        "E[M], Hessian at a layer's output",
        "The mean over samples of the Hessian of the loss with respect to the layer's output z.",
        "E[M] = (1/N) Σₙ ∂²ℓₙ/∂z∂zᵀ",
        f"{WU}, §3",
    ),
    Definition(
        "kronecker",
        "Kronecker approximation",
        "If inputs and output Hessians were uncorrelated, a layer's block would be their Kronecker "
        "product. The relative error says how far it is from that: 0 is a perfect fit.",
        "H_layer = E[M ⊗ xxᵀ] ≈ E[M] ⊗ E[xxᵀ]",
        f"Martens, Grosse, “Optimizing neural networks with Kronecker-factored curvature”, 2015; "
        f"{WU}, §4",
    ),
    Definition(
        "overlap",
        "Overlap of eigenspaces",
        "The mean squared cosine of the angles between two spaces of dimension j: 1 if they are "
        "the same, about j/n for random ones.",
        "‖UᵀV‖_F² / j,  U and V orthonormal bases",
        f"{WU}, definition 4.1",
    ),
    Definition(
        "rank-one",
        "Rank-one-ness of an eigenvector",
        "An eigenvector h of a layer's block, reshaped to the m × n shape of the weights. The "
        "ratio of its largest singular value to its length is 1 if h is a product u ⊗ v.",
        "‖Mat h‖₂ / ‖Mat h‖_F,  ‖Mat h‖_F = ‖h‖ = 1",
        f"{WU}, definition 4.2",
    ),
    Definition(
        "block-norms",
        "Block norms",
        "The Frobenius norm of the part of the Hessian that couples the parameters of one layer "
        "with those of another. Where the diagonal dominates, layers can be treated apart.",
        "‖H_ab‖_F = √(Σᵢ∈a Σⱼ∈b Hᵢⱼ²)",
        DONG,
    ),
)

NAMES = {definition.key: definition.name for definition in DEFINITIONS}
