"""Work that is shared or replayed: ranks, recorded CUDA graphs, seeds, the machine's memory."""

from eigenscape.parallel.cuda_graphs import has_kernels as has_kernels
from eigenscape.parallel.cuda_graphs import record_graph as record_graph
from eigenscape.parallel.cuda_graphs import recording as recording
from eigenscape.parallel.machine import Machine as Machine
from eigenscape.parallel.machine import host_budget as host_budget
from eigenscape.parallel.machine import machine_of as machine_of
from eigenscape.parallel.ranks import Ranks as Ranks
from eigenscape.parallel.ranks import join as join
from eigenscape.parallel.seeds import epoch_order as epoch_order
from eigenscape.parallel.seeds import mixed_seed as mixed_seed

__all__ = [
    "Ranks",
    "join",
]
