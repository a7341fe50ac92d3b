"""What the Thesis says of learned optimisers, as claims."""

from eigenscape.studies.claim import Claim

CLAIMS = (
    Claim(
        "thesis.figure5.4b.validation-wins",
        "Fig. 5.4b",
        "final test accuracy of TbV less that of TbT: few samples, a fifth of the labels noise",
        "significantly above 0",
        low=0.01,
        why="The figure has no readable numbers. The mean over rules is judged, here as below; "
        "until the first run was seen it was one rule of each kind.",
    ),
    Claim(
        "thesis.figure5.5.train-fits-noise",
        "Fig. 5.5",
        "final training accuracy of TbT in that case",
        "TbT fits noisy labels",
        low=0.9,
        why="A fifth of the labels drawn anew leaves 0.82 right for who learns no noise.",
    ),
    Claim(
        "thesis.figure5.5.validation-does-not",
        "Fig. 5.5",
        "final training accuracy of TbT less that of TbV in that case",
        "TbV avoids it",
        low=0.05,
        why="The figure has no readable numbers. A rule that is merely poor avoids it as well: "
        "see validation-learns.",
    ),
    Claim(
        "thesis.figure5.5.validation-learns",
        "Figs 5.4b, 5.5",
        "final test accuracy of TbV less that of tuned SGD in that case",
        "(our check) 0 or more: noise is avoided by skill",
        low=-0.02,
        why="The thesis does not say this, but without it validation-does-not and noise-decides "
        "would also agree for a rule that learns little. 0.02 is the spread of five networks. "
        "Added after the first run, in which TbV's rule was poor.",
        known="On digits a rule of TbV is judged by 100 samples, and learned from 200 short runs. "
        "It is ahead of SGD until step 800 of 1000; then three of five networks lose what they "
        "had: 0.52 and 0.74 at the end. Another rule, of other random numbers, ended at 0.78. With "
        "1000 of MNIST a rule of TbV is where it ends after some 500 of 4000 steps, and stays: "
        "five networks have 0.86, 0.84, 0.80, 0.74 and 0.67. The problems are alike for SGD, which "
        "ends at 0.81 to 0.85, so the rule's first steps decide. SGD passes their mean at step "
        "2000; TbT has 0.80 after 100 steps and 0.66 at the end.",
    ),
    Claim(
        "thesis.figure5.4.noise-decides",
        "Figs 5.4a, b",
        "test accuracy of TbV less that of TbT, with noise less without, few samples",
        "above 0: the advantage comes with noise",
        low=0.0,
        why="Both have the same problems but for the noise. It also agrees where TbV is worse "
        "with noise, and worse still without: see validation-learns.",
    ),
    Claim(
        "thesis.figure5.4c.all-clean-equal",
        "Fig. 5.4c",
        "final test accuracy of TbV less that of TbT, all samples, no noise",
        "no significant difference",
        low=-0.03,
        high=0.03,
        why="The figure has no readable numbers. 0.03 was set when TbV was tested on half of its "
        "samples, and stands.",
        known="With 1437 digits TbT has 0.943 and TbV 0.975 (SGD 0.961): these are few samples "
        "still, and the gap is a quarter of that with 200 samples and noise. With 60 000 of MNIST "
        "they are 0.003 apart.",
    ),
    Claim(
        "thesis.figured.1.all-noisy",
        "Fig. D.1",
        "final test accuracy of TbV less that of TbT, all samples, noise",
        "slightly above 0",
        low=0.0,
        high=0.1,
        why="The figure has no readable numbers.",
        known="With 1437 digits TbV is 0.004 below TbT, less than its spread of 0.018: one network "
        "of five lags behind. TbT fits no noise there, 0.80 of the labels, with 16 hidden units. "
        "With 60 000 of MNIST TbV is 0.032 below TbT and 0.034 below SGD. 4000 steps, where the "
        "thesis has 40 000, show each sample twice, so TbT fits no noise either: 0.78 of the "
        "labels, as SGD does, where 0.82 are right. There is nothing to avoid yet; and TbV's rule "
        "left log 10 only half-way through its learning.",
    ),
    Claim(
        "thesis.figured.3.gap-shrinks",
        "Figs 5.4b, D.1, D.3",
        "largest rise of that difference from one number of samples to the next, with noise",
        "below 0: the gap shrinks",
        high=0.0,
        why="The figures have no readable numbers. It also agrees where TbV is the worse with all "
        "samples.",
    ),
)
