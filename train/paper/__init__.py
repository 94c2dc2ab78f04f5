"""All that is about the paper: its settings, the grids that it searched, and its printed figures.

Malviya, Ravindran and Chandar, "TAG: Task-based Accumulated Gradients for Lifelong learning",
CoLLAs 2022 (https://arxiv.org/abs/2105.05155): `results.csv` holds what its tables print,
`author_results.csv` what its authors logged, which has runs that the paper only plots.
"""

from train.paper.figures import MAIN_TABLE, STREAMS, Reference, departures, reference

__all__ = ["MAIN_TABLE", "STREAMS", "Reference", "departures", "reference"]
