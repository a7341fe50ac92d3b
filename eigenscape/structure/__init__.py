"""What the matrix is made of: classes and blocks."""

from eigenscape.structure.blocks._pictures import pool_magnitudes as pool_magnitudes
from eigenscape.structure.blocks.block_norms import SquaredBlockNorms as SquaredBlockNorms
from eigenscape.structure.blocks.block_norms import jackknife as jackknife
from eigenscape.structure.blocks.block_norms import squared_block_norms as squared_block_norms
from eigenscape.structure.blocks.block_spectra import BlockSpectra as BlockSpectra
from eigenscape.structure.blocks.block_spectra import block_spectra as block_spectra
from eigenscape.structure.blocks.block_structure import BlockStructure as BlockStructure
from eigenscape.structure.blocks.block_structure import Stripes as Stripes
from eigenscape.structure.blocks.block_structure import block_structure as block_structure
from eigenscape.structure.blocks.block_structure import null_block_norms as null_block_norms
from eigenscape.structure.blocks.block_structure import stripes as stripes
from eigenscape.structure.classes.class_span import ClassSpan as ClassSpan
from eigenscape.structure.classes.class_span import class_span as class_span
from eigenscape.structure.classes.class_structure import ClassStructure as ClassStructure
from eigenscape.structure.classes.class_structure import class_structure as class_structure

__all__ = [
    "BlockSpectra",
    "BlockStructure",
    "ClassSpan",
    "ClassStructure",
    "SquaredBlockNorms",
    "Stripes",
    "block_spectra",
    "block_structure",
    "class_span",
    "class_structure",
    "null_block_norms",
    "pool_magnitudes",
    "squared_block_norms",
    "stripes",
]
